"""Time of `pack_sequences` beside lightbinpack and seqpack, and of plans with thousands of distinct lengths.

Owns what is timed and against which target; leaves calling the peers to `peers`.
"""

import gc
from collections.abc import Callable

import numpy as np
import peers
from harness import Row, Sample, interleaved, timed
from workload import MAX_SEQ_LEN, Workspace, in_words, shares

from packhorse.packing import PackingPlan, pack_histogram, pack_sequences

NOTE = (
    "pack-sequences: `pack_sequences` (best-fit) on lengths as an array or a list, flat indices and offsets out, or "
    "lists of lists as the peers give them; `lightbinpack.obfd` and `seqpack.heap_pack_sequences` on the same lengths "
    "as a list, as they take them. Reached when fast enough with no more bins. What the process held before is kept "
    "from the garbage collector, which the peers' many lists set off. Plans: `pack_histogram` on lognormal lengths, "
    "every length of the range present."
)

_FEWEST = 1_000_000
"""Sequences from which on the targets count."""
_LISTS = "list in, lists out"
"""Shown without a target: making lists of lists takes most of its time, and of the peers'."""


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    pack_sequences([3, 5], 8)  # loads what is compiled
    pack_histogram({3: 10, 5: 7, 2: 9}, 11, algorithm="optimal")
    sizes = workspace.sizes
    rows = []
    gc.collect()
    gc.freeze()
    counts = [count for count in (sizes.small, sizes.medium) if count >= _FEWEST]
    for count in counts:
        random = np.random.default_rng(count)
        lengths = random.choice(MAX_SEQ_LEN, size=count, p=shares()) + 1
        repeats = sizes.repeats if count <= _FEWEST else 3
        rows += _beside(lengths, "lightbinpack", "obfd", peers.lightbinpack_obfd, 3, repeats)
        if count == counts[0]:
            rows += _beside(lengths, "seqpack", "heap", peers.seqpack_heap, 10, min(repeats, 3))
    gc.unfreeze()
    return rows + _plans(quick=sizes.small < _FEWEST)


def _beside(
    lengths: np.ndarray, package: str, name: str, peer: Callable[[list[int], int], int], factor: int, repeats: int
) -> list[Row]:
    as_list = lengths.tolist()
    ways: dict[str, Callable[[], object]] = {
        "array in": lambda: pack_sequences(lengths, MAX_SEQ_LEN),
        "list in": lambda: pack_sequences(as_list, MAX_SEQ_LEN),
        _LISTS: lambda: pack_sequences(as_list, MAX_SEQ_LEN).bins(),
    }
    works: list[Callable[[], float]] = [lambda work=work: timed(work) for work in ways.values()]
    num_bins = pack_sequences(lengths, MAX_SEQ_LEN).num_bins
    present = peers.installed(package)
    if present:
        works.append(lambda: timed(lambda: peer(as_list, MAX_SEQ_LEN)))
    *ours, theirs = (Sample(values, "s") for values in interleaved(repeats, *works, *(() if present else (_nothing,))))
    their_bins = peer(as_list, MAX_SEQ_LEN) if present else 0
    return [
        Row(
            what=f"pack_sequences, {way}",
            size=f"{in_words(len(lengths))} sequences",
            ours=f"{sample}; {num_bins:,} bins",
            peer=f"{theirs}; {their_bins:,} bins, {package} {name}" if present else f"{package}: not installed",
            ratio=theirs.median / sample.median if present else None,
            target=f"≥ {factor}×, no more bins" if way != _LISTS else "",
            reached=(theirs.median >= factor * sample.median and num_bins <= their_bins)
            if present and way != _LISTS
            else None,
        )
        for way, sample in zip(ways, ours, strict=True)
    ]


def _nothing() -> float:
    return 0.0


def _plans(*, quick: bool) -> list[Row]:
    rows = []
    for capacity, mean, sigma, num_sequences, algorithm, seconds in (
        (2048, 1200, 0.5, 10**6, "auto", 10),
        (4096, 2400, 0.5, 10**6, "auto", 40),
        (131_072, 20_000, 1.0, 10**9, "best-fit", 2),
    ):
        if quick and capacity == 4096:
            continue
        counts = _counts(capacity, mean, sigma, num_sequences)
        plans: list[PackingPlan] = []

        def plan(
            counts: dict[int, int] = counts,
            capacity: int = capacity,
            algorithm: str = algorithm,
            plans: list[PackingPlan] = plans,
        ) -> None:
            plans.append(pack_histogram(counts, capacity, algorithm=algorithm))

        (values,) = interleaved(1 if quick else 3, lambda: timed(plan))
        sample, gap = Sample(values, "s"), plans[-1].gap
        wanted = f"≤ {seconds} s" + (", gap ≤ 0.005 %" if algorithm == "auto" else "")
        rows.append(
            Row(
                what=f"plan, {algorithm}, mean {mean:,}, sigma {sigma:g} @{capacity}",
                size=f"{in_words(num_sequences)} sequences, {len(counts):,} lengths",
                ours=f"{sample}; gap {gap:.1e}",
                target=wanted,
                reached=sample.median <= seconds and (gap <= 5e-5 or algorithm != "auto"),
            )
        )
    return rows


def _counts(capacity: int, mean: float, sigma: float, num_sequences: int) -> dict[int, int]:
    """Lognormal counts of `num_sequences` sequences, every length in [1, capacity] present."""
    lengths = np.arange(1, capacity + 1)
    density = np.exp(-((np.log(lengths) - np.log(mean) + sigma**2 / 2) ** 2) / (2 * sigma**2)) / lengths
    counts = np.maximum(1, np.floor(density / density.sum() * num_sequences)).astype(np.int64)
    counts[np.argmax(counts)] += num_sequences - counts.sum()
    return dict(zip(lengths.tolist(), counts.tolist(), strict=True))
