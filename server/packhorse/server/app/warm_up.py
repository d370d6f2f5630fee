"""Every compiled loop that serving uses, compiled or loaded ahead of the first request.

Owns the list of them, in the order in which a server needs them, and the processes that compile them after an install:
`python -m packhorse.server.app.warm_up PART…`.
"""

import logging
import sys
from collections.abc import Callable
from contextlib import suppress

from packhorse.compiling import NotCompiledError, compile_in_children, end_with_parent, only_from_cache
from packhorse.epoch import compile_drawing, compile_finding
from packhorse.epoch import compile_kernels as compile_epoch
from packhorse.packing import compile_kernels as compile_packing

_LOG = logging.getLogger(__name__)

_PARTS: dict[str, Callable[[], None]] = {
    "finding": compile_finding,
    "drawing": compile_drawing,
    "wide-finding": lambda: compile_finding(wide=True),
    "wide-drawing": lambda: compile_drawing(wide=True),
    "others": lambda: compile_kernels(),
    "wide-others": lambda: compile_kernels(wide=True),
}


def compile_kernels(*, wide: bool = False) -> None:
    """Compiles, or loads from Numba's cache, what a request would otherwise compile while all streams wait.

    Args:
        wide: whether for plans with wide tables as well.
    """
    compile_epoch(wide=wide)
    compile_packing()


class WarmUp:
    """Gets a server's kernels ready; each method takes seconds after an install, and later reads from the cache.

    Args:
        wide: whether for plans with wide tables as well.
    """

    def __init__(self, *, wide: bool) -> None:
        self._wide = wide
        self._has_all = False

    def before_serving(self) -> None:
        """Gets what streams of bins need, compiled by two processes; and all else, if nothing is to be compiled."""
        wide = [["wide-finding"], ["wide-drawing"]] if self._wide else [[], []]
        first = [[part, *more] for part, more in zip(("finding", "drawing"), wide, strict=True)]
        parts = [part for command in first for part in command]
        try:
            with only_from_cache():
                compile_parts(parts)
        except NotCompiledError:
            compile_in_children(__name__, first)
            compile_parts(parts)
        else:
            with suppress(NotCompiledError), only_from_cache():
                compile_kernels(wide=self._wide)
                self._has_all = True

    def while_serving(self) -> None:
        """Gets the rest, compiled by one process that gives way to all others."""
        if not self._has_all:
            _LOG.info("compiling what rare requests need, in the background; streams are served meanwhile")
            compile_in_children(__name__, [["wide-others" if self._wide else "others"]], in_background=True)
            compile_kernels(wide=self._wide)
            _LOG.info("all kernels are ready, those of rare requests too")


def compile_parts(names: list[str]) -> None:
    """Compiles parts of the kernels, or loads them from Numba's cache."""
    for name in names:
        _PARTS[name]()


if __name__ == "__main__":
    end_with_parent()
    logging.disable(logging.WARNING)  # the server says what goes wrong with the cache
    compile_parts(sys.argv[1:])
