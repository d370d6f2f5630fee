"""The response of each method, from a checked request to the message. No module here uses gRPC."""
