"""Assignments: which positions each rank gets at which step, and how long ranks wait."""
