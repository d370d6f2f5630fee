"""Every compiled loop that serving uses, compiled ahead of the first request.

Owns the list of them; called when a server starts and when its image is built.
"""

from packhorse.epoch import compile_kernels as compile_epoch
from packhorse.packing import pack_sequences
from packhorse.packing.online import compile_kernels as compile_online


def compile_kernels() -> None:
    """Compiles, or loads from Numba's cache, what the first stream or packing would otherwise wait for."""
    compile_epoch()
    compile_online()
    for seed in (None, 0):
        pack_sequences([1, 1], 2, seed=seed)
