"""Packing on demand, of sequences that no dataset has: all at once (PackSequences), or as they arrive (PackStream)."""
