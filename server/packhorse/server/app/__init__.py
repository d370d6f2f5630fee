"""A server from start to end: in one process or several."""
