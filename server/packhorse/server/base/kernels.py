"""The compiled loops (kernels) that serving uses, compiled or loaded before the first request that needs them.

Owns the list of kernels, in the order in which a server needs them, and the process that compiles them after an
install: `python -m packhorse.server.base.kernels [wide]`. Leaves the plain forms that run until then to
`packhorse.compiling`.
"""

import logging
import sys
from functools import partial

from packhorse.compiling import HAS_NUMBA
from packhorse.epoch import compile_kernels as compile_epoch
from packhorse.packing import compile_kernels as compile_packing

_WIDE = "wide"
"""The argument that makes the process compile for plans with wide tables (`PlanIndex.is_wide`) too."""


def compile_kernels(*, wide: bool = False) -> None:
    """Compiles all kernels, or loads them from Numba's cache.

    Args:
        wide: whether plans with wide tables (`PlanIndex.is_wide`) are served as well.
    """
    compile_epoch(wide=wide)
    compile_packing()


def begin(*, wide: bool = False, at_once: bool = True) -> None:
    """Gets kernels for the requests of this process: from the cache, or compiled in the background. Nothing waits.

    Args:
        wide: whether plans with wide tables (`PlanIndex.is_wide`) are served as well.
        at_once: whether all are loaded now; otherwise each is loaded by the first request that needs it.
    """
    if HAS_NUMBA:
        from packhorse.compiling.ahead import compile_ahead

        arguments = ["-m", __name__, _WIDE] if wide else ["-m", __name__]
        compile_ahead(partial(compile_kernels, wide=wide), arguments, at_once=at_once)


if __name__ == "__main__":
    from packhorse.compiling.ahead import end_with_parent

    end_with_parent()
    logging.disable(logging.WARNING)  # the server itself logs what is wrong with the cache
    compile_kernels(wide=_WIDE in sys.argv)
