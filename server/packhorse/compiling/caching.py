"""How a loop is compiled and kept on disk, by this process or by a child of it.

Owns the decorators, what happens when the cache cannot be read or written, and the child processes, so that the
compiler's memory is theirs. Which loops they compile is up to the modules that they run.
"""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import CodeType
from typing import Any

import numba
import numpy as np
from numba.core import caching

from packhorse.storage import hold_lock

_LOG = logging.getLogger(__name__)

_njit: Any = numba.njit  # its types lack options that it has
_FunctionCache: Any = caching.FunctionCache

_POLL_SECONDS = 0.02
_LOCK = "packhorse-compiling.lock"

kernel_part = _njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Decorates a loop that only kernels call: it is compiled with each of them, and kept on disk as a part of them."""


class NotCompiledError(Exception):
    """The cache lacks a kernel, and this thread may not compile it."""


def kernel(function: Callable[..., Any]) -> Any:
    """Compiles a loop that runs without the GIL, and keeps it on disk.

    Where it cannot be written to disk, one warning says so, and each process compiles it again.

    Example:
        >>> @kernel
        ... def total(numbers):
        ...     total = 0
        ...     for number in numbers:
        ...         total += number
        ...     return total

    Args:
        function: takes arrays, numbers, and named tuples of them.
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
    """Lets this thread read kernels from disk only.

    Raises:
        NotCompiledError: a kernel would have to be compiled.
    """
    _thread.only_from_cache = True
    try:
        yield
    finally:
        _thread.only_from_cache = False


@contextmanager
def compiled_elsewhere() -> Iterator[None]:
    """Lets all threads of this process wait until the cache has what they need, while another process compiles it."""
    global _num_elsewhere
    _num_elsewhere += 1
    try:
        yield
    finally:
        _num_elsewhere -= 1


def compile_in_children(module: str, commands: Sequence[Sequence[str]], *, in_background: bool = False) -> None:
    """Runs `python -m MODULE ARGUMENTS…` once for each command, all at once, and waits for them.

    Does nothing where the cache cannot be written. Of several processes with one cache, one at a time compiles. A
    child writes its errors to stderr; whoever needs the kernel then compiles it.

    Args:
        module: compiles what its arguments name.
        commands: the arguments of each process.
        in_background: whether the children run at the lowest priority.
    """
    folder = cache_folder()
    if folder is None:
        return
    with compiled_elsewhere(), _locked(folder):
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", module, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                process_group=0,  # ^C in a terminal is the parent's
            )
            for command in commands
        ]
        try:
            if in_background:
                for process in processes:
                    os.setpriority(os.PRIO_PROCESS, process.pid, 19)
            for process in processes:
                process.wait()
        finally:
            for process in processes:
                process.kill()
                process.communicate()


def end_with_parent() -> None:
    """Ends this process as soon as the one that started it by `compile_in_children` ends."""

    def wait() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


class _Thread(threading.local):
    only_from_cache = False


_thread = _Thread()
_num_elsewhere = 0
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
                time.sleep(_POLL_SECONDS)
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


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the lock of a cache folder, for which other processes wait; without a lock where no file can be made."""
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(hold_lock(folder / _LOCK))
        yield
