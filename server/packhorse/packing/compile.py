"""Compiles the loops of packing on demand before the first request, by running each on a tiny input.

Leaves how a loop is compiled, and its cache, to `packhorse.compiling`.
"""

from contextlib import suppress

from packhorse.packing.on_demand.even import compile_kernels as compile_even
from packhorse.packing.on_demand.next_bin import compile_kernels as compile_next_bin
from packhorse.packing.on_demand.sequences import pack_sequences
from packhorse.packing.optimal.repacking import compile_kernels as compile_repacking
from packhorse.packing.registry import LIST_ONLY


def compile_kernels() -> None:
    """Compiles, or loads from Numba's cache, the kernels that a request would otherwise wait for.

    Example:
        >>> compile_kernels()  # takes seconds the first time, then reads the cache
    """
    compile_next_bin()
    compile_even()
    for seed in (None, 0):  # sequences of equal length are shuffled if there is a seed
        pack_sequences([1, 1], 2, seed=seed)
    for algorithm in LIST_ONLY:
        pack_sequences([1, 1], 2, algorithm=algorithm)
    with suppress(ImportError):  # without HiGHS there is no "optimal"
        # Two cases that best-fit does not solve: without a limit of sequences, and with one.
        pack_sequences([5, 5, 6, 10, 10], 19, algorithm="optimal")
        pack_sequences([2, 2, 3, 3, 4, 5, 6, 7, 7, 7, 8], 14, algorithm="optimal", max_sequences_per_bin=3)
        compile_repacking()
