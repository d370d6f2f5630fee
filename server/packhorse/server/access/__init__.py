"""Who may call, and how the server is reached: its options, certificates and tokens."""
