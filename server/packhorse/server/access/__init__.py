"""Access to the server: certificates and tokens."""
