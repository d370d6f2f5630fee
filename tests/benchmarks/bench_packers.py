"""Bins of `auto` beside every peer, on the distributions that packing is judged by, each plan with its proof.

Owns the choice of distributions and what counts as reached; leaves calling the peers to `peers`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import peers
from bench_online import distributions
from harness import Row
from numpy.typing import NDArray
from workload import Workspace, in_words

from packhorse.packing import PackingPlan, pack_histogram

NOTE = (
    "packers: bins of `pack_histogram` with auto, its proven lower bound, gap and seconds, beside the peers on the "
    "same lengths; reached when no peer has fewer bins and, where the target says so, the gap is at most 0.005 %. The "
    "slower the peer, the fewer the sequences. TRL gets the whole dataset as one batch; its wrapped strategy cuts "
    "sequences apart and is shown, but does not compete. Wikipedia: the published efficiencies and seconds are those "
    "of Krell et al. on their machine; SPFHP and LPFHP with bins are our own implementations of their algorithms."
)
DATA = Path(__file__).parents[1] / "data"

_GAP = 5e-5
_MOST_TOKENS = 60_000_000
"""Of a size that TRL packs: it moves every token."""
_SLOWEST = 3_000
"""Sequences for peers whose time grows with sequences times bins."""
_PUBLISHED = {
    3: (0.9988, "99.75 % in 24.3 s, NNLSHP; 89.49 %, LPFHP (published)", 0.9975),
    12: (0.0, "99.604 % in 0.032 s, SPFHP; 99.813 % in 0.048 s, LPFHP (published)", 0.99813),
    None: (0.9998, "99.949 %, LPFHP (published)", 0.99949),
}
"""Depth → efficiency to reach, what Krell et al. published, and the best of it."""
_PUBLISHED_SECONDS = 24.3
"""Of NNLSHP, the only one of theirs that optimises."""


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    pack_histogram({3: 10, 5: 7, 2: 9}, 11, algorithm="optimal")  # compiles
    full = workspace.sizes.small >= 1_000_000
    most = workspace.sizes.small if full else 20_000
    rows = []
    for name, capacity, lengths in _distributions(most):
        rows.append(_beside(name, capacity, lengths, peers.for_millions(), full=full, proven=True))
        fewer = lengths[: min(most // 10, int(_MOST_TOKENS / lengths.mean()))]
        wrapped = peers.trl_wrapped(fewer, capacity) if peers.installed("trl") else None
        rows.append(_beside(name, capacity, fewer, peers.for_thousands(), full=full, wrapped=wrapped))
        if full:
            rows.append(_beside(name, capacity, lengths[:_SLOWEST], peers.for_hundreds(), full=full))
    return rows + _wikipedia(full=full) + _capped(full=full)


def _capped(*, full: bool) -> list[Row]:
    """Where a limit of sequences matters, beside best-fit and balanced; and many lengths with one sequence each."""
    random = np.random.default_rng(0)
    share = 1 if full else 10
    cases = [
        (
            f"lognormal(mu {mu}, sigma {sigma}) @{capacity}, at most {limit} in a bin",
            capacity,
            limit,
            np.clip(random.lognormal(mu, sigma, count // share).astype(np.int64), 1, capacity),
        )
        for mu, sigma, capacity, limit, count in ((5.5, 1.0, 4096, 8, 60_000), (6.5, 1.3, 32768, 32, 30_000))
    ]
    few = random.choice(np.arange(16385, 32768), 5000 // share, replace=False)
    cases.append(("lengths between a quarter and half of 65,536, one sequence each", 65536, None, few))
    rows = []
    for name, capacity, limit, lengths in cases:
        distinct, counts = np.unique(lengths, return_counts=True)
        by_length = dict(zip(distinct.tolist(), counts.tolist(), strict=True))
        plan = pack_histogram(by_length, capacity, max_sequences_per_bin=limit)
        plain = {
            packer: pack_histogram(by_length, capacity, algorithm=packer, max_sequences_per_bin=limit).num_bins
            for packer in ("best-fit", "balanced")
        }
        rows.append(
            Row(
                what=f"bins, {name}",
                size=f"{in_words(len(lengths))} sequences, {len(distinct):,} lengths",
                ours=_in_words(plan),
                peer=_grouped(plain),
                ratio=min(plain.values()) / plan.num_bins,
                target="no plain packer fewer, gap ≤ 0.5 %",
                reached=plan.num_bins <= min(plain.values()) and plan.gap <= 0.005,
            )
        )
    return rows


def _distributions(count: int) -> Iterator[tuple[str, int, NDArray[np.int64]]]:
    """Yields (name, max_seq_len, lengths int64 [count])."""
    yield from distributions(count, seed=0)
    random = np.random.default_rng(0)
    draws = random.lognormal(np.log(2400) - 0.5**2 / 2, 0.5, count)
    yield "lognormal, mean 2,400, sigma 0.5 @4096", 4096, np.clip(draws.astype(np.int64), 1, 4096)
    corpus = _stored("demo_corpus_1024")
    lengths = np.repeat(np.fromiter(corpus, np.int64), np.fromiter(corpus.values(), np.int64))
    yield "the demo's corpus @1024", 1024, random.permutation(lengths)


def _beside(
    name: str,
    capacity: int,
    lengths: NDArray[np.int64],
    packers: Mapping[str, peers.Peer],
    *,
    full: bool,
    proven: bool = False,
    wrapped: int | None = None,
) -> Row:
    """One row; `proven`: the gap counts too, unless this is a short run."""
    proven = proven and full
    distinct, counts = np.unique(lengths, return_counts=True)
    by_length = dict(zip(distinct.tolist(), counts.tolist(), strict=True))
    plan = pack_histogram(by_length, capacity, time_limit_seconds=60 if full else 0.5)
    as_list = lengths.tolist()
    bins = {peer: pack(as_list, capacity) for peer, pack in packers.items()}
    texts = [_grouped(bins)] if bins else []
    texts += [f"{wrapped:,}, TRL wrapped, cutting sequences apart"] if wrapped else []
    texts += [peers.missing()] if peers.missing() else []
    least = min(bins.values(), default=plan.num_bins)
    return Row(
        what=f"bins, {name}",
        size=f"{in_words(len(lengths))} sequences, {len(distinct):,} lengths",
        ours=_in_words(plan),
        peer="; ".join(texts),
        ratio=least / plan.num_bins if bins else None,
        target="no peer fewer" + (f", gap ≤ {_GAP:.3%}" if proven else ""),
        reached=(plan.num_bins <= least and (plan.gap <= _GAP or not proven)) if bins else None,
    )


def _wikipedia(*, full: bool) -> list[Row]:
    counts = _stored("wikipedia_512")
    if not full:
        counts = {length: -(-count // 64) for length, count in counts.items()}
    size = f"{in_words(sum(counts.values()))} sequences"
    rows = []
    for depth in (2, 3, 4, 12, None):
        plan = pack_histogram(counts, 512, max_sequences_per_bin=depth)
        rivals = {
            name: pack_histogram(counts, 512, algorithm=algorithm, max_sequences_per_bin=depth).num_bins
            for name, algorithm in (("our SPFHP", "shortest-pack-first"), ("our LPFHP", "longest-pack-first"))
        }
        texts = []
        if depth is None:
            lengths: Sequence[int] = np.repeat(list(counts), list(counts.values())).tolist()
            if peers.installed("seqpack"):
                rivals["seqpack batched"] = peers.seqpack_batched_of_counts(counts, 512)
            if peers.installed("lightbinpack"):
                rivals["lightbinpack obfd"] = peers.lightbinpack_obfd(lengths, 512)
            texts += [peers.missing()] if peers.missing() else []
        needed, published, best = _PUBLISHED.get(depth, (0.0, "", 0.0)) if full else (0.0, "", 0.0)
        least = min(rivals.values())
        reached = plan.num_bins <= least and plan.gap <= _GAP and plan.efficiency >= max(needed, best)
        target = f"no peer fewer, gap ≤ {_GAP:.3%}"
        if needed:
            target += f", ≥ {needed:.2%}, < {_PUBLISHED_SECONDS} s"
            reached = reached and plan.seconds < _PUBLISHED_SECONDS
        most = "any number of" if depth is None else f"at most {depth}"
        rows.append(
            Row(
                what=f"bins, Wikipedia @512, {most} sequences a bin",
                size=size,
                ours=f"{plan.efficiency:.3%}; {_in_words(plan)}",
                peer="; ".join([*([published] if published else []), _grouped(rivals), *texts]),
                ratio=least / plan.num_bins,
                target=target,
                reached=reached,
            )
        )
    return rows


def _stored(name: str) -> dict[int, int]:
    counts = json.loads((DATA / f"{name}_histogram.json").read_text())
    return {length: count for length, count in enumerate(counts, start=1) if count}


def _in_words(plan: PackingPlan) -> str:
    proof = "proven optimal" if plan.proven else f"bound {plan.lower_bound:,}, gap {plan.gap:.1e}"
    return f"{plan.num_bins:,} ({proof}; {plan.algorithm}, {plan.seconds:.2g} s)"


def _grouped(bins: Mapping[str, int]) -> str:
    """Peers with equal bins together, fewest bins first."""
    return "; ".join(
        f"{count:,}, {', '.join(name for name in bins if bins[name] == count)}" for count in sorted(set(bins.values()))
    )
