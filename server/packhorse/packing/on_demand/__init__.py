"""Packing on demand: all lengths at once, sequences as they arrive, and packs that cost the same."""
