"""Losses: weights of tokens, and sums and metrics by sequence and component."""
