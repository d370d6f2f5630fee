"""Dataloader workers: how they start, and how they outlive a preemption."""
