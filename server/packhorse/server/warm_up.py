"""Every compiled loop that serving uses, compiled ahead of the first request.

Owns the list of them; called when a server starts and when its image is built.
"""

from contextlib import suppress

from packhorse.epoch import compile_kernels as compile_epoch
from packhorse.packing import pack_sequences
from packhorse.packing.online import compile_kernels as compile_online
from packhorse.packing.registry import LIST_ONLY


def compile_kernels() -> None:
    """Compiles, or loads from Numba's cache, what a request would otherwise compile while all streams wait."""
    compile_epoch()
    compile_online()
    for seed in (None, 0):
        pack_sequences([1, 1], 2, seed=seed)
    for algorithm in LIST_ONLY:
        pack_sequences([1, 1], 2, algorithm=algorithm)
    with suppress(ImportError):  # without HiGHS there is no "optimal"
        # Two cases that best-fit does not solve: without a limit of sequences, and with one.
        pack_sequences([5, 5, 6, 10, 10], 19, algorithm="optimal")
        pack_sequences([2, 2, 3, 3, 4, 5, 6, 7, 7, 7, 8], 14, algorithm="optimal", max_sequences_per_bin=3)
