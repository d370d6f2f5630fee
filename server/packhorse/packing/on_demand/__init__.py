"""Packing on demand: a list of lengths, sequences as they arrive, and bins that cost the same."""
