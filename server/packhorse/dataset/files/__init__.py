"""Mixtures and takedowns: the TOML files that users write, and what they open."""
