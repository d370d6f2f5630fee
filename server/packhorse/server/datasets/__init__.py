"""Datasets, mixtures and takedowns below the data root, read again when their files change."""
