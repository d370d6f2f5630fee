"""The compiled loops of an epoch: columns, draws, permutations, positions to ids and back."""
