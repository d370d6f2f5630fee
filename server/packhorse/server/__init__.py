"""The service: prepared datasets over gRPC."""
