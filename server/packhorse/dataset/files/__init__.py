"""Mixtures and takedowns: the TOML files that users write, and the mixtures and takedowns that these files describe."""
