"""Sources: a prepared epoch, and what is made of sources (skips, windows, groups, joins, mixtures)."""
