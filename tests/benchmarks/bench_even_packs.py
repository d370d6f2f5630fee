"""How long ranks wait for each other's packs of rollouts, beside verl's Karmarkar-Karp.

Owns the cases, and the call of verl's own function. Only that function of it is run: put the folder `verl` of its wheel
on PYTHONPATH, and nothing else of the wheel, which also brings a package `tests` that would hide ours. Without verl its
column stays empty. Legend: D ranks.
"""

import ast
import copy
import heapq
import importlib.util
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from harness import Row
from numpy.typing import NDArray
from workload import Workspace

from packhorse.client import Client, RetryPolicy
from packhorse.client.options import PackOptions
from packhorse.client.transport.embedded import EmbeddedPlanner

Split = Callable[[list[int], int, bool], list[list[int]]]
"""(costs, packs, whether they have as many items) → each pack's items."""

NOTE = (
    "even-packs: time that ranks wait at every micro-step, on top of their work, for packs of rollouts of lognormal "
    "lengths up to 8,193 tokens that cost 24,576 · L + L²; the mean of 20 seeds. verl packs into as many packs; in "
    "brackets how many batches have a pack over the cap. The target is verl plus half a point, or what the longest "
    "rollout forces if all other packs cost the same."
)

COST_LINEAR = 24_576
SEEDS = 20
CASES = [
    (8, 64, 16_384, 1.1),
    (8, 256, 16_384, 1.1),
    (8, 512, 16_384, 0.6),
    (16, 128, 32_768, 1.0),
    (32, 512, 32_768, 0.8),
    (64, 1024, 32_768, 1.0),
    (8, 1024, 8_194, 0.8),
    (64, 20_000, 32_768, 1.0),
]
"""(D, rollouts, max_seq_len, sigma of the lengths)."""


def karmarkar_karp() -> Split | None:
    """Verl's function, alone: its module imports all of verl. None where verl is not installed."""
    spec = importlib.util.find_spec("verl")
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / "utils" / "seqlen_balancing.py"
    wanted = [
        node
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == "karmarkar_karp"
    ]
    names = {"copy": copy, "heapq": heapq, "chain": itertools.chain}
    exec(compile(ast.Module(wanted, []), str(file), "exec"), names)
    found: Split = names["karmarkar_karp"]  # type: ignore[assignment]
    return found


def waiting(costs: NDArray[np.int64], world_size: int) -> float:
    """Percent that waiting adds, if packs are sorted by cost and cut into rounds of D."""
    rounds = -np.sort(-costs).reshape(-1, world_size)
    return 100 * float(rounds.max(axis=1).sum() / rounds.mean(axis=1).sum() - 1)


def forced_by_longest(costs: NDArray[np.int64], num_packs: int, world_size: int) -> float:
    """Percent that waiting adds if all packs cost the same but the one of the dearest rollout, alone in it."""
    if costs.max() * num_packs <= costs.sum():  # it does not fill a pack
        return 0.0
    of_others = (costs.sum() - costs.max()) / (num_packs - 1)
    duration = costs.max() + (num_packs / world_size - 1) * of_others
    return 100 * float(world_size * duration / costs.sum() - 1)


def batches(num: int, sigma: float) -> Iterator[NDArray[np.int64]]:
    """Yields the lengths of each seed's rollouts."""
    for seed in range(SEEDS):
        lengths = np.random.default_rng(seed).lognormal(7.2, sigma, num)
        yield np.minimum(lengths, 8192).astype(np.int64) + 1


def measured(world_size: int, num: int, cap: int, sigma: float, verl: Split | None) -> Row:
    """Packs one case's batches by both."""
    ours, theirs, forced, seconds, num_over = [], [], [], [], [0, 0]
    with Client(EmbeddedPlanner(), RetryPolicy()) as client:
        for lengths in batches(num, sigma):
            costs = COST_LINEAR * lengths + lengths**2
            started = time.perf_counter()
            packs = client.pack_sequences(
                lengths,
                cap,
                num_bins_multiple_of=world_size,
                packing=PackOptions(balance="micro-step", cost_linear=COST_LINEAR),
            )
            seconds.append(time.perf_counter() - started)
            of_packs = np.array([costs[pack].sum() for pack in packs])
            ours.append(waiting(of_packs, world_size))
            forced.append(forced_by_longest(costs, len(packs), world_size))
            num_over[0] += max(lengths[pack].sum() for pack in packs) > cap
            if verl is not None and num <= 1024:
                parts = verl(costs.tolist(), len(packs), False)
                theirs.append(waiting(np.array([costs[part].sum() for part in parts]), world_size))
                num_over[1] += max(lengths[part].sum() for part in parts) > cap
    mean, bound = float(np.mean(ours)), max(float(np.mean(forced)), float(np.mean(theirs or [0])) + 0.5)
    return Row(
        what=f"waiting for packs of {num:,} rollouts on {world_size} ranks, {cap:,} tokens, sigma {sigma}",
        size=f"{SEEDS} batches",
        ours=f"{mean:.2f} % ({num_over[0]}), at most {max(ours):.2f} %; {1e3 * float(np.median(seconds)):.0f} ms",
        peer=f"{np.mean(theirs):.2f} % ({num_over[1]}), verl's karmarkar_karp" if theirs else "",
        target=f"≤ {bound:.2f} %",
        reached=mean <= bound and not num_over[0],
    )


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    verl = karmarkar_karp()
    return [measured(*case, verl) for case in CASES]
