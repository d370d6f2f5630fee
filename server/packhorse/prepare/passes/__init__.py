"""The passes over raw data: counting, sorting and merging, in tasks that any engine runs."""
