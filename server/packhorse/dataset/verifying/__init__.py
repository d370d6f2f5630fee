"""Whether a prepared folder is as it was: its files against their checksums, its lengths against the data."""
