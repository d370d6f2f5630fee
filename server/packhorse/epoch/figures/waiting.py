"""How long ranks wait for each other, with each balance: measured on the first optimizer steps of an epoch.

Owns `Waiting`, and measuring it for a source, a plan or costs. Leaves arranging bins to `balance`, a bin's cost to
`plan_index`, and pictures to `packhorse.analysis`.

Shape letters: n optimizer steps, W = A·D·b bins in each, A steps, D ranks, b bins in a rank's batch.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packhorse.epoch.balance import MAX_BINS_PER_OPTIMIZER_STEP, arrange
from packhorse.epoch.plan_index import PlanIndex
from packhorse.epoch.sources.prepared import EpochView
from packhorse.epoch.sources.source import Source
from packhorse.parameters import parameter
from packhorse.topology import Balance, Topology

_SAMPLED_BINS = 1 << 16  # bins that are measured, unless a single optimizer step has more


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Time that waiting adds to the ranks' work, as a share of the work: with 0.5 it takes 1.5 times as long."""

    at_steps: float
    """Share if ranks wait for each other at every step (FSDP, expert parallelism)."""
    at_optimizer_steps: float
    """Share if ranks wait once in an optimizer step (DDP, ZeRO-1 with accumulation)."""

    @classmethod
    def of_costs(cls, costs: NDArray[np.int64]) -> "Waiting":
        """Measures the costs of bins by optimizer step, step, rank and slot: int64 [n, A, D, b], not all 0.

        Example:
            >>> Waiting.of_costs(np.array([[[[3], [1]], [[1], [3]]]]))
            Waiting(at_steps=0.5, at_optimizer_steps=0.0)
        """
        rank_costs = costs.sum(axis=3).astype(np.float64)
        return cls(at_steps=_excess(rank_costs), at_optimizer_steps=_excess(rank_costs.sum(axis=1)))


def _excess(rank_costs: NDArray[np.float64]) -> float:
    """Returns how much longer the slowest rank takes than the mean rank, as a share; ranks are the last axis."""
    return float(max(rank_costs.max(axis=-1).sum() / rank_costs.mean(axis=-1).sum() - 1, 0.0))


def idle_share(excess: float) -> float:
    """Returns the share of GPU time that ranks spend waiting, in [0, 1).

    Example:
        >>> idle_share(1.0)
        0.5

    Args:
        excess: time that waiting adds, as a share of the ranks' work; at least 0.
    """
    return excess / (1 + excess)


def waiting_of(
    source: Source, topology: Topology, balances: Collection[Balance] = tuple(Balance)
) -> dict[Balance, Waiting] | None:
    """Computes how long ranks wait with several balances, on the first optimizer steps of an epoch.

    Example:
        >>> plan = PlanIndex.build({(4,): 10, (2,): 10}, {4: 10, 2: 10}, 4)
        >>> epoch = EpochView(plan, np.arange(20), seed=0, epoch=0)
        >>> waiting_of(epoch, Topology(world_size=2, accumulation=10, cost_linear=1))[Balance.MICRO_STEP]
        Waiting(at_steps=0.0, at_optimizer_steps=0.0)

    Args:
        source: the epoch.
        topology: the run's topology, with one batch size; its `balance` is ignored.
        balances: the balances to measure.

    Returns:
        Balance → waiting; None if the epoch has no full optimizer step.

    Raises:
        ValueError: an optimizer step has more bins than can be balanced.
    """
    size = topology.accumulation * topology.bins_per_step
    if size > MAX_BINS_PER_OPTIMIZER_STEP:
        raise ValueError(
            parameter("world_size")
            + " · "
            + parameter("batch_size")
            + f" · accumulation is {size:,}, over the {MAX_BINS_PER_OPTIMIZER_STEP:,} bins that one "
            "optimizer step may have: lower one of them"
        )
    num_optimizer_steps = min(source.num_bins // size, max(1, _SAMPLED_BINS // size))
    if not num_optimizer_steps:
        return None
    costs = source.costs(np.arange(num_optimizer_steps * size), topology.cost_linear)
    return waiting_of_costs(costs.reshape(num_optimizer_steps, size), topology, balances)


def waiting_of_plan(
    plan: PlanIndex, topology: Topology, balances: Collection[Balance] = tuple(Balance)
) -> dict[Balance, Waiting] | None:
    """Computes `waiting_of` for a plan without a pool, because waiting does not depend on ids.

    Example:
        >>> plan = PlanIndex.build({(4,): 10, (2,): 10}, {4: 10, 2: 10}, 4)
        >>> waiting = waiting_of_plan(plan, Topology(world_size=2, accumulation=10, cost_linear=1))
        >>> waiting[Balance.MICRO_STEP]
        Waiting(at_steps=0.0, at_optimizer_steps=0.0)

    Args:
        plan: the plan's tables.
        topology: as in `waiting_of`.
        balances: as in `waiting_of`.
    """
    no_ids = np.broadcast_to(np.uint32(0), plan.num_sequences)  # takes no memory
    return waiting_of(EpochView(plan, no_ids, seed=0, epoch=0), topology, balances)


def waiting_of_costs(
    costs: NDArray[np.int64], topology: Topology, balances: Collection[Balance] = tuple(Balance)
) -> dict[Balance, Waiting]:
    """Computes `waiting_of` from the costs of bins in the order of an epoch: int64 [n, W]."""
    shape = (len(costs), topology.accumulation, topology.world_size, topology.stretches[0].batch_size)
    keys = np.arange(len(costs), dtype=np.uint64)  # any will do: a key only says which rank gets which share
    waiting = {}
    for balance in balances:
        in_order = costs
        if balance is not Balance.NONE:
            arranged = arrange(costs, balance, topology.accumulation, topology.world_size, keys)
            in_order = np.take_along_axis(costs, arranged.reshape(costs.shape), axis=1)
        waiting[balance] = Waiting.of_costs(in_order.reshape(shape))
    return waiting
