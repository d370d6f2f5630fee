"""The command `packhorse export`."""
