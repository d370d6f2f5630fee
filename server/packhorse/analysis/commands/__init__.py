"""Commands that show figures: of a prepared folder, and of plans side by side."""
