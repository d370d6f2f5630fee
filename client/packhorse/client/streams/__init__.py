"""Streams: bins as the service sends them, the cursor, and what the service tells of a dataset. No torch."""
