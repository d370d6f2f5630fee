"""Every compiled loop that serving uses, compiled or loaded ahead of the first request that needs it.

Owns the list of them, in the order in which a server needs them, and the process that compiles them after an install:
`python -m packhorse.server.base.kernels [wide]`. Leaves what runs until then to `packhorse.compiling`.
"""

import logging
import sys
from functools import partial

from packhorse.compiling import HAS_NUMBA
from packhorse.epoch import compile_kernels as compile_epoch
from packhorse.packing import compile_kernels as compile_packing

_WIDE = "wide"


def compile_kernels(*, wide: bool = False) -> None:
    """Compiles all kernels, or loads them from Numba's cache.

    Args:
        wide: whether for plans with wide tables as well.
    """
    compile_epoch(wide=wide)
    compile_packing()


def begin(*, wide: bool = False, at_once: bool = True) -> None:
    """Gets kernels for the requests of this process: from the cache, or in the background. No request waits for it.

    Args:
        wide: whether for plans with wide tables as well.
        at_once: whether now, else each with the first request that needs it.
    """
    if HAS_NUMBA:
        from packhorse.compiling.ahead import compile_ahead

        compile_ahead(partial(compile_kernels, wide=wide), ["-m", __name__, *[_WIDE] * wide], at_once=at_once)


if __name__ == "__main__":
    from packhorse.compiling.ahead import end_with_parent

    end_with_parent()
    logging.disable(logging.WARNING)  # the server says what goes wrong with the cache
    compile_kernels(wide=_WIDE in sys.argv)
