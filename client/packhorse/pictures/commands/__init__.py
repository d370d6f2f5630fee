"""The command that draws bins and explains steps."""
