"""Input: the files that users name, as ranges, rows, and texts that may become documents."""
