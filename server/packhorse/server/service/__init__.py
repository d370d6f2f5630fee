"""The gRPC face: requests on their way in, and the methods as gRPC calls them."""
