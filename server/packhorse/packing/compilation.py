"""Every compiled loop of packing on demand, compiled ahead of the first request.

Owns the smallest lists that run through all of them.
"""

from contextlib import suppress

from packhorse.packing import online
from packhorse.packing.registry import LIST_ONLY
from packhorse.packing.sequences import pack_sequences


def compile_kernels() -> None:
    """Compiles, or loads from Numba's cache, what a request would otherwise compile while all streams wait.

    Example:
        >>> compile_kernels()  # seconds the first time, then read from the cache
    """
    online.compile_kernels()
    for seed in (None, 0):
        pack_sequences([1, 1], 2, seed=seed)
    for algorithm in LIST_ONLY:
        pack_sequences([1, 1], 2, algorithm=algorithm)
    with suppress(ImportError):  # without HiGHS there is no "optimal"
        # Two cases that best-fit does not solve: without a limit of sequences, and with one.
        pack_sequences([5, 5, 6, 10, 10], 19, algorithm="optimal")
        pack_sequences([2, 2, 3, 3, 4, 5, 6, 7, 7, 7, 8], 14, algorithm="optimal", max_sequences_per_bin=3)
