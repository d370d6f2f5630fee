"""Dataloader workers: how they start, and how they survive a preemption until the trainer has saved."""
