"""The demo: from text to training on this machine. It uses every other package."""
