"""Every compiled loop that serving uses, compiled ahead of the first request.

Owns the list of them; called when a server starts and when its image is built.
"""

from packhorse.epoch import compile_kernels as compile_epoch
from packhorse.packing import compile_kernels as compile_packing


def compile_kernels(*, wide: bool = False) -> None:
    """Compiles, or loads from Numba's cache, what a request would otherwise compile while all streams wait.

    Args:
        wide: whether for plans with wide tables as well.
    """
    compile_epoch(wide=wide)
    compile_packing()
