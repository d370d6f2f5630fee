"""Packing under several budgets, such as tokens and image tiles: classes of sizes, and their packer."""
