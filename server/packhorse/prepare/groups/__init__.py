"""Groups of sequences that are planned as one item: what a user says of them, reading them whole, their tables."""
