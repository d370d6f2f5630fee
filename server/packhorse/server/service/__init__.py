"""The gRPC side: the interceptor, the methods as gRPC calls them, and the lanes and limits that bound requests."""
