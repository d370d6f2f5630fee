"""Access to the server: its options, certificates and tokens."""
