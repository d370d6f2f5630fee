"""Online packing beside the streaming packers that hold nothing back, and beside offline best-fit.

Owns its distributions and two small baselines, next-fit and harmonic; `python tests/benchmarks/bench_online.py` prints
a table. Every packer of a row sees the same lengths in the same order, in this one process.
"""

import argparse
import time
from collections.abc import Callable, Iterator

import numpy as np
from harness import Row
from numpy.typing import NDArray
from workload import Workspace, in_words

from packhorse.packing import pack_histogram
from packhorse.packing.on_demand.next_bin import compile_kernels
from packhorse.packing.on_demand.online import OnlinePacker

Lengths = NDArray[np.int64]

NOTE = (
    "online: share of the bins' capacity that is filled when sequences arrive one by one: `OnlinePacker` with a window "
    "of 1,000, beside next-fit and Harmonic(12), which hold nothing back; the target is offline best-fit, less a point."
)


def distributions(count: int, seed: int) -> Iterator[tuple[str, int, Lengths]]:
    """Yields (name, max_seq_len, lengths int64 [count], clipped into [1, max_seq_len])."""

    def lognormal(random: np.random.Generator, mean: float, sigma: float) -> NDArray[np.float64]:
        return random.lognormal(np.log(mean) - sigma**2 / 2, sigma, count)

    def bimodal(random: np.random.Generator) -> NDArray[np.float64]:
        return np.where(random.random(count) < 0.5, random.normal(300, 80, count), random.normal(1500, 200, count))

    draws: list[tuple[str, int, Callable[[np.random.Generator], NDArray[np.float64]]]] = [
        ("lognormal, mean 600, sigma 1 @2048", 2048, lambda random: lognormal(random, 600, 1.0)),
        ("lognormal, mean 1,200, sigma 0.5 @2048", 2048, lambda random: lognormal(random, 1200, 0.5)),
        ("uniform 16–512 @512", 512, lambda random: random.uniform(16, 513, count)),
        ("gamma(5, 20) @512", 512, lambda random: random.gamma(5, 20, count)),
        ("N(4096, 512) @8192", 8192, lambda random: random.normal(4096, 512, count)),
        ("N(4096, 512) @8193", 8193, lambda random: random.normal(4096, 512, count)),
        ("bimodal, N(300, 80) and N(1500, 200) @2048", 2048, bimodal),
        ("exponential, mean 400 @2048", 2048, lambda random: random.exponential(400, count)),
    ]
    for name, capacity, draw in draws:
        yield name, capacity, np.clip(draw(np.random.default_rng(seed)).astype(np.int64), 1, capacity)


def next_fit(lengths: list[int], capacity: int) -> int:
    """Number of bins when each sequence goes into the one open bin, or else closes it."""
    num_bins, room = 0, 0
    for length in lengths:
        if length > room:
            num_bins, room = num_bins + 1, capacity
        room -= length
    return num_bins


def harmonic(lengths: list[int], capacity: int, num_classes: int = 12) -> int:
    """Number of bins of Harmonic(k): lengths in (C/(j+1), C/j] share bins of j; the shortest go by next-fit.

    Source: C. C. Lee, D. T. Lee, "A simple on-line bin-packing algorithm", Journal of the ACM 32 (1985).
    """
    waiting = [0] * num_classes
    short: list[int] = []
    num_bins = 0
    for length in lengths:
        fits = capacity // length
        if fits >= num_classes:
            short.append(length)
            continue
        waiting[fits] += 1
        if waiting[fits] == fits:
            waiting[fits], num_bins = 0, num_bins + 1
    return num_bins + sum(count > 0 for count in waiting) + next_fit(short, capacity)


def online(lengths: list[int], capacity: int, window: int) -> int:
    """Number of bins of OnlinePacker, the flush included."""
    packer = OnlinePacker(capacity, lookahead_sequences=window)
    return sum(len(packer.add(number, length)) for number, length in enumerate(lengths)) + len(packer.flush())


def measured(lengths: Lengths, capacity: int, window: int) -> tuple[list[float], float]:
    """Returns the percentages of next-fit, harmonic, online and offline best-fit, and online's µs of CPU a sequence."""
    values = lengths.tolist()
    counts = dict(zip(*(part.tolist() for part in np.unique(lengths, return_counts=True)), strict=True))
    offline = pack_histogram(counts, capacity, algorithm="best-fit").num_bins
    started = time.process_time()
    num_bins = online(values, capacity, window)
    micros = (time.process_time() - started) / len(values) * 1e6
    all_bins = (next_fit(values, capacity), harmonic(values, capacity), num_bins, offline)
    return [100 * sum(values) / capacity / bins for bins in all_bins], micros


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    compile_kernels()
    count = workspace.sizes.small // 20
    rows = []
    for name, capacity, lengths in distributions(count, seed=0):
        (next_percent, harmonic_percent, percent, offline), micros = measured(lengths, capacity, 1000)
        rows.append(
            Row(
                what=f"online packing, {name}",
                size=f"{in_words(count)} sequences",
                ours=f"{percent:.2f} % ({micros:.0f} µs a sequence)",
                peer=f"{next_percent:.2f} %, next-fit; {harmonic_percent:.2f} %, harmonic",
                target=f"≥ {offline - 1:.2f} %",
                reached=percent >= offline - 1,
            )
        )
    return rows


def main() -> None:
    """Prints efficiencies in percent, the points that online packing is below offline, and its time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=50_000)
    parser.add_argument("--window", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    compile_kernels()
    print(f"{arguments.sequences:,} sequences, window of {arguments.window:,}, seed {arguments.seed}\n")
    print("| lengths | next-fit | harmonic | online | offline best-fit | points below | µs CPU a sequence |")
    print("|---|---|---|---|---|---|---|")
    for name, capacity, lengths in distributions(arguments.sequences, arguments.seed):
        percent, micros = measured(lengths, capacity, arguments.window)
        print(f"| {name} | {' | '.join(f'{p:.2f}' for p in percent)} | {percent[3] - percent[2]:.2f} | {micros:.0f} |")


if __name__ == "__main__":
    main()
