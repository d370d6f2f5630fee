"""Output: the folder that is written, under its lock, and how it takes its name."""
