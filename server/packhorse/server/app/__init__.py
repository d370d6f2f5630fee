"""A server from start to end: its options, its ports, one process or several."""
