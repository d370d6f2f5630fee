"""Transports: how a client reaches servers, here or over gRPC, with credentials, retries and errors. No torch."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's core writes to stderr by itself what our errors say better
