"""How long ranks wait for each other, from the costs of their bins: what a balance is worth, before a run.

Owns the measure and the sampling of windows; leaves arranging to `balance` and pictures to the command line.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packhorse.epoch.assignment.balance import MAX_BINS_PER_OPTIMIZER_STEP, arrange
from packhorse.epoch.plan_index import PlanIndex
from packhorse.epoch.sources.prepared import EpochView
from packhorse.epoch.sources.source import Source
from packhorse.topology import Balance, Topology

_SAMPLED_BINS = 1 << 16
"""Bins that are looked at, unless a single window has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Time that ranks need, waits included, beyond what they would need without: 0.5 is half as long again."""

    at_steps: float
    """Where they wait for each other at every step (FSDP, expert parallelism)."""
    at_optimizer_steps: float
    """Where they wait once in an optimizer step (DDP, ZeRO-1 with accumulation)."""

    @classmethod
    def of_costs(cls, costs: NDArray[np.int64]) -> "Waiting":
        """Measures costs: int64 [n windows, A steps, D ranks, b bins of a batch], not all 0.

        Example:
            >>> Waiting.of_costs(np.array([[[[3], [1]], [[1], [3]]]]))
            Waiting(at_steps=0.5, at_optimizer_steps=0.0)
        """
        of_ranks = costs.sum(axis=3).astype(np.float64)
        return cls(at_steps=_excess(of_ranks), at_optimizer_steps=_excess(of_ranks.sum(axis=1)))


def _excess(of_ranks: NDArray[np.float64]) -> float:
    """The slowest rank's time over the mean rank's, minus 1; ranks along the last axis."""
    return float(max(of_ranks.max(axis=-1).sum() / of_ranks.mean(axis=-1).sum() - 1, 0.0))


def idle_share(excess: float) -> float:
    """Returns the share of GPU time that passes in waiting, in [0, 1), where ranks need `excess` beyond their work.

    Example:
        >>> idle_share(1.0)
        0.5

    Args:
        excess: time beyond the ranks' work, as a share of it; at least 0.
    """
    return excess / (1 + excess)


def waiting_of(
    source: Source, topology: Topology, balances: Collection[Balance] = tuple(Balance)
) -> dict[Balance, Waiting] | None:
    """Measures how long ranks wait, under some balances, on the first optimizer steps of a real epoch.

    Example:
        >>> plan = PlanIndex.build({(4,): 10, (2,): 10}, {4: 10, 2: 10}, 4)
        >>> epoch = EpochView(plan, np.arange(20), seed=0, epoch=0)
        >>> waiting_of(epoch, Topology(world_size=2, accumulation=10, cost_linear=1))[Balance.MICRO_STEP]
        Waiting(at_steps=0.0, at_optimizer_steps=0.0)

    Args:
        source: the epoch.
        topology: the run's shape, with one batch size; its own balance does not matter.
        balances: those to measure.

    Returns:
        Balance → waiting; None where the epoch has no full optimizer step of this shape.

    Raises:
        ValueError: an optimizer step has more bins than can be balanced.
    """
    window = topology.accumulation * topology.bins_per_step
    if window > MAX_BINS_PER_OPTIMIZER_STEP:
        raise ValueError(
            f"world_size · batch_size · accumulation is {window:,}, "
            f"over the {MAX_BINS_PER_OPTIMIZER_STEP:,} bins that one "
            "optimizer step may have: lower one of them"
        )
    num_windows = min(source.num_bins // window, max(1, _SAMPLED_BINS // window))
    if not num_windows:
        return None
    costs = source.costs(np.arange(num_windows * window), topology.cost_linear)
    return waiting_of_costs(costs.reshape(num_windows, window), topology, balances)


def waiting_of_plan(
    plan: PlanIndex, topology: Topology, balances: Collection[Balance] = tuple(Balance)
) -> dict[Balance, Waiting] | None:
    """As `waiting_of`, on an epoch of a plan that need not have been prepared: waiting depends on no id.

    Example:
        >>> plan = PlanIndex.build({(4,): 10, (2,): 10}, {4: 10, 2: 10}, 4)
        >>> waiting = waiting_of_plan(plan, Topology(world_size=2, accumulation=10, cost_linear=1))
        >>> waiting[Balance.MICRO_STEP]
        Waiting(at_steps=0.0, at_optimizer_steps=0.0)

    Args:
        plan: whose bins are dealt.
        topology: the shape of the run.
        balances: which ones to measure.
    """
    no_ids = np.broadcast_to(np.uint32(0), plan.num_sequences)
    return waiting_of(EpochView(plan, no_ids, seed=0, epoch=0), topology, balances)


def waiting_of_costs(
    costs: NDArray[np.int64], topology: Topology, balances: Collection[Balance] = tuple(Balance)
) -> dict[Balance, Waiting]:
    """As `waiting_of`, of the costs of any bins in the order of an epoch: int64 [n windows, bins of a window]."""
    shape = (len(costs), topology.accumulation, topology.world_size, topology.stretches[0].batch_size)
    return {balance: Waiting.of_costs(_arranged(costs, topology, balance).reshape(shape)) for balance in balances}


def _arranged(costs: NDArray[np.int64], topology: Topology, balance: Balance) -> NDArray[np.int64]:
    """Returns the costs in the order in which steps and ranks take their bins."""
    if balance is Balance.NONE:
        return costs
    keys = np.arange(len(costs), dtype=np.uint64)
    arranged = arrange(costs, balance, topology.accumulation, topology.world_size, keys)
    return np.take_along_axis(costs, arranged.reshape(costs.shape), axis=1)
