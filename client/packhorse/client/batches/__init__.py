"""Batches: where sequences lie in rows, and the tensors and weights that follow."""
