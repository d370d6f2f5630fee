"""Time that ranks lose to waiting for each other, beside Karmarkar-Karp on the same bins; and what balancing costs.

Owns Karmarkar-Karp as verl deals a batch to its ranks, written from its description.
"""

import gc
import heapq
import time
from collections import Counter
from itertools import count
from typing import NamedTuple

import numpy as np
from harness import Row, Sample, interleaved, timed
from numpy.typing import NDArray
from workload import Workspace, in_words, serving

from packhorse.client import connect
from packhorse.epoch import EpochView, PlanIndex
from packhorse.epoch.balance import arrange
from packhorse.epoch.figures.waiting import Waiting, waiting_of_costs
from packhorse.packing import counts_of_templates, pack_histogram
from packhorse.topology import DEFAULT_COST_LINEAR, Balance, Topology

NOTE = (
    "waiting: time that ranks need beyond their work, in % of it, for best-fit bins of lognormal lengths truncated to "
    "the context, costs 24,576 · L + L², 64 ranks × 16 steps of one bin each. Beside it the same bins dealt by "
    "Karmarkar-Karp as verl deals a batch (equal numbers, same costs); for waiting at every step each rank then takes "
    "its bins by descending cost, which is verl's order of micro-batches but for its two ends. Assigning a window is "
    "looking up its costs and arranging it, in one thread. A balanced stream is read by 8 ranks in turn in one "
    "process, beside the same ranks without balance."
)
SHAPE = Topology(world_size=64, accumulation=16)

_CASES = (
    (800, 1.2, 8_192, 0.015),
    (2_000, 1.5, 32_768, 0.04),
    (4_000, 1.8, 131_072, 0.08),
)
"""Mean length, sigma, context length, and what micro-step may leave."""
_OPTIMIZER_STEP_LEAVES = 0.001
_WINDOWS = 16
_STREAMS = Topology(world_size=8, batch_size=4, accumulation=16)


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    rows = []
    for mean, sigma, capacity, micro_step_leaves in _CASES:
        view = _epoch(mean, sigma, capacity)
        rows += _waits(view, f"lognormal, mean {mean:,}, sigma {sigma:g} @{capacity:,}", micro_step_leaves)
    repeats = workspace.sizes.repeats
    rows += [_assigning(view, SHAPE, 0.001, repeats)]
    rows += [_assigning(view, Topology(world_size=1024, accumulation=64), 0.05, repeats)]
    return [*rows, _streaming(workspace)]


def _epoch(mean: int, sigma: float, capacity: int) -> EpochView:
    """Returns an epoch of some windows more than are looked at; its ids do not matter."""
    bins = 65_536 + 4 * SHAPE.world_size * SHAPE.accumulation
    draws = np.random.default_rng(capacity).lognormal(np.log(mean) - sigma**2 / 2, sigma, 2 * bins * capacity // mean)
    lengths = np.clip(draws, 1, capacity).astype(np.int64)
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), bins * capacity)) + 1]
    templates = pack_histogram(Counter(lengths.tolist()), capacity, algorithm="best-fit").templates
    plan = PlanIndex.build(templates, counts_of_templates(templates), capacity)
    return EpochView(plan, np.broadcast_to(np.uint32(0), plan.num_sequences), seed=0, epoch=0)


def _waits(view: EpochView, size: str, micro_step_leaves: float) -> list[Row]:
    """Measures both ways to wait, on the epoch's first windows."""
    window = SHAPE.world_size * SHAPE.accumulation
    costs = view.costs(np.arange(_WINDOWS * window), DEFAULT_COST_LINEAR).reshape(_WINDOWS, window)
    found = waiting_of_costs(costs, SHAPE)
    peer = Waiting.of_costs(np.stack([_as_verl(each) for each in costs]))
    unbalanced, micro, optimizer = (found[balance] for balance in Balance)
    return [
        _row("every step", size, micro.at_steps, peer.at_steps, unbalanced.at_steps, micro_step_leaves),
        _row(
            "optimizer steps",
            size,
            optimizer.at_optimizer_steps,
            peer.at_optimizer_steps,
            unbalanced.at_optimizer_steps,
            _OPTIMIZER_STEP_LEAVES,
        ),
    ]


def _row(where: str, size: str, ours: float, peer: float, unbalanced: float, most: float) -> Row:
    return Row(
        what=f"time lost where ranks wait at {where}",
        size=size,
        ours=f"{100 * ours:.2g} %",
        peer=f"{100 * peer:.2g} %, Karmarkar-Karp; {100 * unbalanced:.3g} %, packhorse unbalanced",
        ratio=peer / ours,
        target=f"≤ {100 * most:g} %",
        reached=ours <= most,
    )


def _as_verl(costs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Deals a window by Karmarkar-Karp, each rank's bins by descending cost: int64 [A steps, D ranks, 1]."""
    shares = karmarkar_karp(costs.tolist(), SHAPE.world_size)
    return np.sort(costs[np.array(shares)], axis=1)[:, ::-1].T[:, :, None]


class _Share(NamedTuple):
    """Bins of one rank, so far."""

    total: int
    bins: tuple[int, ...]


def karmarkar_karp(costs: list[int], num_shares: int) -> list[tuple[int, ...]]:
    """Deals bins into shares of equal number by the largest differencing method.

    Bins in the order of cost are cut into runs of `num_shares`, each a partition of one bin a share. The two partitions
    whose shares differ most become one, the largest shares of one with the smallest of the other, until one is left.

    Args:
        costs: of every bin; their number is a multiple of num_shares.
        num_shares: ranks.
    """
    by_cost = sorted(range(len(costs)), key=costs.__getitem__)
    order = count()  # breaks ties, so that partitions are never compared
    heap: list[tuple[int, int, list[_Share]]] = []

    def push(shares: list[_Share]) -> None:
        shares.sort(reverse=True)
        heapq.heappush(heap, (shares[-1].total - shares[0].total, next(order), shares))

    for first in range(0, len(by_cost), num_shares):
        push([_Share(costs[each], (each,)) for each in by_cost[first : first + num_shares]])
    while len(heap) > 1:
        one, other = heapq.heappop(heap)[2], heapq.heappop(heap)[2]
        pairs = zip(one, reversed(other), strict=True)
        push([_Share(a.total + b.total, a.bins + b.bins) for a, b in pairs])
    return [share.bins for share in heap[0][2]]


def _assigning(view: EpochView, shape: Topology, most_seconds: float, repeats: int) -> Row:
    """Times one window under both balances, and by Karmarkar-Karp."""
    window = shape.world_size * shape.accumulation
    keys = np.zeros(1, dtype=np.uint64)

    def ours(balance: Balance) -> float:
        def assign() -> None:
            costs = view.costs(np.arange(window), DEFAULT_COST_LINEAR)[None]
            arrange(costs, balance, shape.accumulation, shape.world_size, keys)

        return timed(assign)

    def peer() -> float:
        costs = view.costs(np.arange(window), DEFAULT_COST_LINEAR).tolist()
        return timed(lambda: karmarkar_karp(costs, shape.world_size))

    works = (lambda: ours(Balance.MICRO_STEP), lambda: ours(Balance.OPTIMIZER_STEP), peer)
    interleaved(1, *works)  # compiles
    micro, optimizer, theirs = (Sample(tuple(1000 * each for each in s), "ms") for s in interleaved(repeats, *works))
    slower = max(micro.median, optimizer.median)
    return Row(
        what="assign a window",
        size=f"{window:,} bins, {shape.world_size:,} ranks × {shape.accumulation}",
        ours=f"{micro}, micro-step; {optimizer}, optimizer-step",
        peer=f"{theirs}, Karmarkar-Karp in Python",
        ratio=theirs.median / slower,
        target=f"< {1000 * most_seconds:g} ms",
        reached=slower < 1000 * most_seconds,
    )


def _streaming(workspace: Workspace) -> Row:
    """Reads all ranks' streams in turn, balanced and not."""
    sizes = workspace.sizes
    name, epochs = f"bench-{sizes.large}", count()
    with serving(workspace.root_of(sizes.large)) as (address, _), connect(address) as client:

        def rate(balance: Balance) -> float:
            topology = Topology(
                world_size=_STREAMS.world_size,
                batch_size=_STREAMS.batch_size,
                accumulation=_STREAMS.accumulation,
                balance=balance,
            )
            epoch = next(epochs) // 3
            streams = [
                client.stream_bins(name, epoch=epoch, seed=1, rank=rank, topology=topology)
                for rank in range(topology.world_size)
            ]
            try:
                gc.collect()
                started = time.perf_counter()
                done = 0
                while done < sizes.streamed_ids // 4:
                    done += sum(len(next(stream).ids) for stream in streams)
                return done / (time.perf_counter() - started) / 1e6
            finally:
                for stream in streams:
                    stream.close()

        works = (
            lambda: rate(Balance.NONE),
            lambda: rate(Balance.MICRO_STEP),
            lambda: rate(Balance.OPTIMIZER_STEP),
        )
        interleaved(1, *works)
        plain, micro, optimizer = (Sample(rates, "M ids/s") for rates in interleaved(sizes.repeats, *works))
    slower = min(micro.median, optimizer.median)
    return Row(
        what="a balanced stream",
        size=f"{in_words(sizes.large)} sequences, {_STREAMS.world_size} ranks × {_STREAMS.accumulation}",
        ours=f"{micro}, micro-step; {optimizer}, optimizer-step",
        peer=f"{plain}, packhorse unbalanced",
        ratio=slower / plain.median,
        target="≥ 0.8×",
        reached=slower >= 0.8 * plain.median,
    )
