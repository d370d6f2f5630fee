"""The forms in which conversations are published, and those that chat templates read."""
