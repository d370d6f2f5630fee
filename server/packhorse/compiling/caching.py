"""How a loop is compiled, and what happens where the cache on disk lacks it, is full or cannot be written.

Owns the decorators, and the choice between compiling here and waiting for another process; leaves those processes to
`children`.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
from numba.core import caching

_LOG = logging.getLogger(__name__)

_njit: Any = numba.njit  # its types lack options that it has
_FunctionCache: Any = caching.FunctionCache

_ASKED_EVERY_SECONDS = 0.02

kernel_part = _njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Decorates a loop that only kernels call: it is compiled with each of them, and kept on disk as a part of them."""


class NotCompiledError(Exception):
    """The cache lacks a kernel, and this thread may not compile it."""


def kernel(function: Callable[..., Any]) -> Any:
    """Compiles a loop that runs without the GIL, and keeps it on disk.

    Where the disk takes nothing, a warning says so once, and the process compiles for itself.

    Example:
        >>> @kernel
        ... def total(numbers):
        ...     total = 0
        ...     for number in numbers:
        ...         total += number
        ...     return total

    Args:
        function: its arguments are arrays, numbers, and named tuples of them.
    """
    compiled = _njit(nogil=True)(function)
    try:
        compiled._cache = _Cache(function)
    except RuntimeError:  # Numba found no folder that it can write to
        _warn("no folder for compiled kernels can be written", Path(function.__code__.co_filename).parent)
    else:
        _folders.add(Path(compiled._cache.cache_path))
    return compiled


def cache_folder() -> Path | None:
    """Returns a folder that keeps kernels; None where there is none, or it could not be written."""
    return None if _warned or not _folders else min(_folders)


@contextmanager
def only_from_cache() -> Iterator[None]:
    """Lets this thread read kernels from disk, and compile none.

    Raises:
        NotCompiledError: one would have to be compiled.
    """
    _thread.only_from_cache = True
    try:
        yield
    finally:
        _thread.only_from_cache = False


@contextmanager
def compiled_elsewhere() -> Iterator[None]:
    """Lets all threads of this process wait for the cache to have what they want, as another process compiles it."""
    global _num_elsewhere
    _num_elsewhere += 1
    try:
        yield
    finally:
        _num_elsewhere -= 1


class _Thread(threading.local):
    only_from_cache = False


_thread = _Thread()
_num_elsewhere = 0
_folders: set[Path] = set()
_warned: list[str] = []


class _Cache(_FunctionCache):
    """Numba's cache of a function, but a disk's errors end nobody."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Returns what is compiled for a signature, or None where it is to be compiled here."""
        is_waiting = True
        while is_waiting:
            is_waiting = _num_elsewhere > 0
            found = self._found(sig, target_context)
            if found is not None:
                return found
            if _thread.only_from_cache:
                raise NotCompiledError(self._name)
            if is_waiting:
                time.sleep(_ASKED_EVERY_SECONDS)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keeps what is compiled for a signature."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _warn(f"compiled kernels cannot be kept: {error.strerror or error}", Path(self.cache_path))

    def _found(self, sig: Any, target_context: Any) -> Any:
        try:
            found = super().load_overload(sig, target_context)
        except Exception as error:  # a file that another version or a full disk left: whatever unpickling it raises
            _LOG.info("%s: a compiled kernel cannot be read, and is compiled again: %r", self.cache_path, error)
            return None
        # Two processes may have written one file at once, each for a signature of its own.
        return found if found is None or tuple(found.signature.args) == tuple(getattr(sig, "args", sig)) else None


def _warn(what: str, folder: Path) -> None:
    """Says once what this process cannot keep."""
    if not _warned:
        _warned.append(what)
        _LOG.warning(
            "%s (in %s): every start compiles them again, which takes seconds of processor time and 300 MB; set "
            "NUMBA_CACHE_DIR to a folder that can be written and has 50 MB left",
            what,
            folder,
        )
