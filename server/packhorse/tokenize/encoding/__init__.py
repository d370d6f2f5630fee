"""Encoding: tokenizers on disk, and turning documents into sequences of token ids, with counts."""
