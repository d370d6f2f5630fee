"""How much runs at once: threads for each kind of work, memory for answers, and open streams."""
