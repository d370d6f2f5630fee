"""The folder that a command writes: its last files, its lock, which folder it replaces, and how it takes its name."""
