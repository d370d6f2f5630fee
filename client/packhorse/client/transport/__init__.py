"""Transports: how a client reaches servers, here or over gRPC, with credentials, retries and errors. No torch."""
