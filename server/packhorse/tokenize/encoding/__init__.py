"""Encoding: tokenizers, documents to sequences of token ids, and what is counted on the way."""
