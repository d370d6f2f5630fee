"""Every compiled loop that serving uses, compiled ahead of the first request.

Owns the list of them; called when a server starts and when its image is built.
"""

import math

import numpy as np

from packhorse.epoch import compile_kernels as compile_epoch
from packhorse.packing import pack_sequences
from packhorse.packing.online import compile_kernels as compile_online
from packhorse.packing.pricing import price
from packhorse.packing.registry import LIST_ONLY


def compile_kernels() -> None:
    """Compiles, or loads from Numba's cache, what a request would otherwise compile while all streams wait."""
    compile_epoch()
    compile_online()
    for seed in (None, 0):
        pack_sequences([1, 1], 2, seed=seed)
    for algorithm in LIST_ONLY:
        pack_sequences([1, 1], 2, algorithm=algorithm)
    for most_sequences in (8, 3):  # no limit that binds, and one that does
        price(np.array([3, 2]), np.array([2, 1]), 8, most_sequences, math.inf).bin_with(0)
