"""How long ranks wait for each other, from the costs of their bins: what a balance is worth, before a run.

Owns the measure and the sampling of windows; leaves arranging to `balance` and pictures to the command line.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packhorse.epoch.balance import arrange
from packhorse.epoch.source import Source
from packhorse.topology import Balance, Topology

_SAMPLED_BINS = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Time that ranks need, waits included, beyond what they would need without: 0.5 is half as long again."""

    at_steps: float
    """Where they wait for each other at every step (FSDP, expert parallelism)."""
    at_optimizer_steps: float
    """Where they wait once in an optimizer step (DDP, ZeRO-1 with accumulation)."""

    @classmethod
    def of_costs(cls, costs: NDArray[np.int64]) -> "Waiting":
        """Measures costs, int64 [n windows, A steps, D ranks, b bins of a batch], each at least 1 in sum of a step."""
        of_ranks = costs.sum(axis=3).astype(np.float64)
        return cls(at_steps=_excess(of_ranks), at_optimizer_steps=_excess(of_ranks.sum(axis=1)))


def _excess(of_ranks: NDArray[np.float64]) -> float:
    """The slowest rank's time over the mean rank's, minus 1; ranks along the last axis."""
    return float(of_ranks.max(axis=-1).sum() / of_ranks.mean(axis=-1).sum() - 1)


def idle_share(excess: float) -> float:
    """Returns the share of GPU time that passes in waiting, in [0, 1), where ranks need `excess` beyond their work.

    Example:
        >>> idle_share(1.0)
        0.5
    """
    return excess / (1 + excess)


def waiting_of(source: Source, topology: Topology) -> dict[Balance, Waiting] | None:
    """Measures how long the ranks of a topology wait, under every balance, on windows of a real epoch.

    Args:
        source: the epoch.
        topology: the run's shape; its own balance does not matter.

    Returns:
        Balance → waiting; None where the epoch has no full optimizer step of this shape.
    """
    window = topology.accumulation * topology.bins_per_step
    num_windows = min(source.num_bins // window, max(1, _SAMPLED_BINS // window))
    if not num_windows:
        return None
    costs = source.costs(np.arange(num_windows * window), topology.cost_linear)
    return waiting_of_costs(costs.reshape(num_windows, window), topology)


def waiting_of_costs(costs: NDArray[np.int64], topology: Topology) -> dict[Balance, Waiting]:
    """As `waiting_of`, of the costs of any bins in the order of an epoch: int64 [n windows, bins of a window]."""
    shape = (len(costs), topology.accumulation, topology.world_size, topology.batch_size)
    found = {Balance.NONE: Waiting.of_costs(costs.reshape(shape))}
    keys = np.arange(len(costs), dtype=np.uint64)
    for balance in (Balance.MICRO_STEP, Balance.OPTIMIZER_STEP):
        arranged = arrange(costs, balance, topology.accumulation, topology.world_size, keys)
        taken = np.take_along_axis(costs, arranged.reshape(costs.shape), axis=1)
        found[balance] = Waiting.of_costs(taken.reshape(shape))
    return found
