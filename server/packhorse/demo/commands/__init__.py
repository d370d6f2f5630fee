"""The command `packhorse demo`."""
