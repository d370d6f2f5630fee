"""The command that writes an epoch to files."""
