"""How a loop is compiled and kept on disk.

Owns the decorators, and what happens when the cache cannot be read or written. Leaves what runs until a loop is
compiled to `plain`, and compiling ahead of requests to `ahead`.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import CodeType
from typing import Any

import numba
import numpy as np
from numba.core import caching

from packhorse.storage import LockHeldError, hold_lock

_LOG = logging.getLogger(__name__)

_njit: Any = numba.njit  # its types lack options that it has
_FunctionCache: Any = caching.FunctionCache

_LOCK = "packhorse-compiling.lock"

compiled_part = _njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Decorates as `loops.kernel_part`."""

inlined = _njit(inline="always")
"""Decorates as `loops.inlined`."""


class NotCompiledError(Exception):
    """The cache lacks a kernel, and this thread may not compile it."""


def compiled(function: Callable[..., Any]) -> Any:
    """Returns Numba's dispatcher of a loop, which has our cache: see `loops.kernel`."""
    dispatcher = _njit(nogil=True)(function)
    try:
        dispatcher._cache = _Cache(function)
    except RuntimeError:  # Numba found no folder that it can write to
        _warn("no folder for compiled kernels can be written", Path(function.__code__.co_filename).parent)
    else:
        _folders.add(Path(dispatcher._cache.cache_path))
    return dispatcher


def cache_folder() -> Path | None:
    """Returns a folder that keeps kernels; None if there is none, or it could not be written."""
    return None if _warned or not _folders else min(_folders)


@contextmanager
def only_from_cache() -> Iterator[None]:
    """Lets this thread read kernels from disk only.

    Raises:
        NotCompiledError: a kernel would have to be compiled.
    """
    before, _thread.only_from_cache = _thread.only_from_cache, True
    try:
        yield
    finally:
        _thread.only_from_cache = before


@contextmanager
def compiling_alone(folder: Path) -> Iterator[None]:
    """Keeps other processes from compiling for a cache folder; does nothing if no lock can be made there.

    Raises:
        LockHeldError: another process compiles.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(hold_lock(folder / _LOCK, wait_seconds=0))
        except LockHeldError:
            raise
        except OSError as error:
            _LOG.info("%s: of several processes, each compiles kernels: %s", folder, error.strerror or error)
        yield


class _Thread(threading.local):
    only_from_cache = False


_thread = _Thread()
_folders: set[Path] = set()
_warned: list[str] = []


class _Cache(_FunctionCache):
    """Numba's cache of a function, in which errors of the disk are not fatal, and an edit of what it calls counts."""

    @cached_property
    def _digest(self) -> str:
        return _digest_of(self._py_func)

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return (*super()._index_key(sig, codegen), self._digest)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Returns what is compiled for a signature, or None if it is to be compiled here."""
        found = self._found(sig, target_context)
        if found is None and _thread.only_from_cache:
            raise NotCompiledError(self._name)
        return found

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


def _digest_of(function: Callable[..., Any]) -> str:
    """Returns a digest of all that a loop is compiled from: its code, the code of what it calls, and constants.

    Numba itself looks at the loop's own file only.
    """
    digest, known = sha256(), [function]
    for one in known:  # which grows meanwhile
        code = one.__code__
        digest.update(
            repr((code.co_code, [each for each in code.co_consts if not isinstance(each, CodeType)])).encode()
        )
        for name in code.co_names:
            value = one.__globals__.get(name)
            if (called := getattr(value, "py_func", None)) is not None:
                if called not in known:
                    known.append(called)
            elif isinstance(value, int | float | tuple | np.generic):
                digest.update(repr((name, value)).encode())
    return digest.hexdigest()


def _warn(what: str, folder: Path) -> None:
    if not _warned:
        _warned.append(what)
        _LOG.warning(
            "%s (in %s): every start compiles them again, which takes seconds of processor time and 300 MB; set "
            "NUMBA_CACHE_DIR to a folder that can be written and has 50 MB left",
            what,
            folder,
        )
