"""The command that shows the whole way."""
