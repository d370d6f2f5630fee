"""Sources: the epoch of a prepared dataset, and sources made of sources (skips, windows, groups, joins, mixtures)."""
