"""How Numba compiles a loop, and the cache of compiled loops on disk.

Owns the calls of Numba, and what happens if the cache cannot be read or written. Leaves the decorators that other
packages use to `loops`, the form that runs until a loop is compiled to `plain`, and compiling ahead of requests to
`ahead`.
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

# `Any`, because Numba's types lack options that are used here.
_njit: Any = numba.njit
_FunctionCache: Any = caching.FunctionCache

_LOCK = "packhorse-compiling.lock"
"""Name of the lock file in the cache folder that a process holds while it compiles all kernels."""

compiled_part = _njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Numba's form of the decorator `loops.kernel_part`."""

inlined = _njit(inline="always")
"""Numba's form of the decorator `loops.inlined`."""


class NotCompiledError(Exception):
    """The cache lacks a kernel, and this thread may not compile it: see `only_from_cache`."""


def compiled(function: Callable[..., Any]) -> Any:
    """Returns Numba's dispatcher of a loop, with `_Cache` as its cache: see `loops.kernel`."""
    dispatcher = _njit(nogil=True)(function)
    try:
        dispatcher._cache = _Cache(function)
    except RuntimeError:  # Numba found no folder that it can write to
        _warn("no folder for compiled kernels can be written", Path(function.__code__.co_filename).parent)
    else:
        _folders.add(Path(dispatcher._cache.cache_path))
    return dispatcher


def cache_folder() -> Path | None:
    """Returns a folder of the cache; None if there is none, or if a write to one has failed."""
    return None if _warned or not _folders else min(_folders)


@contextmanager
def only_from_cache() -> Iterator[None]:
    """Lets this thread load kernels from disk, but not compile them.

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
    """Holds the lock of a cache folder, so that only one process compiles for it. Does nothing if it cannot be locked.

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
    """What a thread may do; each thread has its own values."""

    only_from_cache = False
    """Whether the thread may load kernels but not compile them."""


_thread = _Thread()
_folders: set[Path] = set()
"""Folders of the cache, of all loops declared so far."""
_warned: list[str] = []
"""The warning that this process has given; at most one."""


class _Cache(_FunctionCache):
    """Numba's cache of a loop, with two differences.

    An error of the disk is not fatal; and an edit of any loop that this one calls makes the cached form invalid. The
    methods without a leading underscore, and `_index_key`, override Numba's.
    """

    @cached_property
    def _digest(self) -> str:
        return _digest_of(self._py_func)

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        """Returns what a compiled form is found by: Numba's key, and the digest of all code that went into it."""
        return (*super()._index_key(sig, codegen), self._digest)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Returns the form compiled for a signature; None tells Numba to compile it now.

        Raises:
            NotCompiledError: there is none, and this thread may not compile.
        """
        form = self._form_on_disk(sig, target_context)
        if form is None and _thread.only_from_cache:
            raise NotCompiledError(self._name)
        return form

    def save_overload(self, sig: Any, data: Any) -> None:
        """Writes the form compiled for a signature to disk; warns if it cannot."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _warn(f"compiled kernels cannot be kept: {error.strerror or error}", Path(self.cache_path))

    def _form_on_disk(self, sig: Any, target_context: Any) -> Any:
        """Returns the form on disk that was compiled for a signature; None if there is none that can be used."""
        try:
            form = super().load_overload(sig, target_context)
        except Exception as error:  # a file that another version or a full disk left: whatever unpickling it raises
            _LOG.info("%s: a compiled kernel cannot be read, and is compiled again: %r", self.cache_path, error)
            return None
        # If two processes wrote one file at the same time, it may hold the form for another signature.
        is_for_signature = form is None or tuple(form.signature.args) == tuple(getattr(sig, "args", sig))
        return form if is_for_signature else None


def _digest_of(function: Callable[..., Any]) -> str:
    """Returns a digest of all that a loop is compiled from: its code, the code of loops that it calls, and constants.

    Numba itself looks only at the file that the loop is in.
    """
    digest, loops = sha256(), [function]
    for loop in loops:  # the list grows meanwhile: loops that are called are appended
        code = loop.__code__
        constants = [constant for constant in code.co_consts if not isinstance(constant, CodeType)]
        digest.update(repr((code.co_code, constants)).encode())
        for name in code.co_names:
            value = loop.__globals__.get(name)
            called = getattr(value, "py_func", None)
            if called is None:
                if isinstance(value, int | float | tuple | np.generic):
                    digest.update(repr((name, value)).encode())
            elif called not in loops:
                loops.append(called)
    return digest.hexdigest()


def _warn(what: str, folder: Path) -> None:
    """Logs a warning that kernels are not cached; only the first one in a process."""
    if not _warned:
        _warned.append(what)
        _LOG.warning(
            "%s (in %s): every start compiles them again, which takes seconds of processor time and 300 MB; set "
            "NUMBA_CACHE_DIR to a folder that can be written and has 50 MB left",
            what,
            folder,
        )
