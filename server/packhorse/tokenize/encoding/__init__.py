"""Encoding: tokenizers on disk, and turning documents and rows into sequences of token ids."""
