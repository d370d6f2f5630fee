"""Figures about epochs: how well they are shuffled, how often bin-mates meet again, and how long ranks wait."""
