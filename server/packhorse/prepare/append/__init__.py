"""Appending to a dataset: what may be appended, and whether the new version still holds the old one."""
