"""The folder that a command writes: its lock, which folder it may replace, and how it takes its name."""
