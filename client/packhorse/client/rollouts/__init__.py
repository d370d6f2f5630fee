"""Rollouts of reinforcement learning in packed batches.

Re-exports what the files of this package own.
"""

from packhorse.client.rollouts.open_instruct import OpenInstructPacks, to_open_instruct
from packhorse.client.rollouts.pack import RolloutBatch, pack_rollouts

__all__ = ["OpenInstructPacks", "RolloutBatch", "pack_rollouts", "to_open_instruct"]
