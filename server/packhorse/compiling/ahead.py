"""Compiling ahead of requests: one child process compiles, and until it has, requests run plain forms.

Owns the state of this process's kernels, and the child, so that the compiler's memory is its own. Which loops are
compiled is up to the caller.
"""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from numba.core.compiler_lock import global_compiler_lock

from packhorse.compiling.caching import NotCompiledError, cache_folder, compiling_alone, only_from_cache
from packhorse.storage import LockHeldError

_LOG = logging.getLogger(__name__)

_POLL_SECONDS = 0.25
"""How often it looks for what the child has compiled; a look that finds nothing new takes about 1 ms."""


class _Kernels:
    """What this process knows of its kernels."""

    def __init__(self) -> None:
        self.get: Callable[[], None] | None = None
        """Compiles all of them, or loads them. None if nobody gets them ahead: whoever needs one compiles it."""
        self.command: Sequence[str] = ()
        """Arguments of the Python process that does the same."""
        self.thread: threading.Thread | None = None
        """Gets them."""


_kernels = _Kernels()
_lock = threading.Lock()


def compile_ahead(get: Callable[[], None], command: Sequence[str], *, at_once: bool = True) -> None:
    """Lets requests of this process run plain forms of kernels that the cache lacks, while a child compiles them.

    Args:
        get: compiles all kernels, or loads those that the cache has, in the order in which requests need them.
        command: arguments of a Python process that does the same; it calls `end_with_parent`.
        at_once: whether to load them now, and to compile now what the cache lacks; else a request that needs a kernel
            loads it, and the first that the cache lacks begins.
    """
    if at_once and _found(get):
        return
    with _lock:
        if _kernels.thread is None:
            _kernels.get, _kernels.command = get, command
    if at_once:
        _begin()


def runs_plain(compile_for: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Returns whether a kernel runs in its plain form, because its compiled one is not there yet.

    Args:
        compile_for: loads or compiles the kernel for arguments.
        args: these.
    """
    if _kernels.get is None or _kernels.thread is threading.current_thread():
        return False
    if _kernels.thread is None:
        try:
            with only_from_cache():
                compile_for(*args)
                return False
        except NotCompiledError:
            _begin()
    return _kernels.thread is None or _kernels.thread.is_alive()


def end_with_parent() -> None:
    """Ends this process as soon as the one that started it by `compile_ahead` ends."""

    def wait() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _begin() -> None:
    with _lock:
        if _kernels.thread is None:
            _kernels.thread = threading.Thread(target=_get, name="kernels", daemon=True)
            _kernels.thread.start()


def _get() -> None:
    """Gets all kernels: from the cache as soon as it has them, and by compiling here what a child could not."""
    get, child = _kernels.get, None
    assert get is not None
    try:
        with ExitStack() as stack:
            while not _found(get):
                folder = cache_folder()
                if folder is None or (child is not None and child.poll() is not None):
                    get()
                    break
                if child is None:
                    try:
                        stack.enter_context(compiling_alone(folder))
                    except LockHeldError:
                        pass  # what the other compiles is for us too
                    else:
                        _LOG.info("kernels are compiled, once after an install; requests are served meanwhile, slower")
                        child = _child(stack, _kernels.command)
                time.sleep(_POLL_SECONDS)
        if child is not None:
            _LOG.info("all kernels are ready")
    except Exception:
        _LOG.exception("a kernel could not be compiled ahead; the first request that needs it compiles it")


def _found(get: Callable[[], None]) -> bool:
    try:
        with only_from_cache():
            get()
    except NotCompiledError:
        return False
    return True


def _child(stack: ExitStack, command: Sequence[str]) -> "subprocess.Popen[bytes]":
    child = subprocess.Popen(
        [sys.executable, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        process_group=0,  # ^C in a terminal is the parent's
    )
    stack.callback(child.communicate)
    stack.callback(child.kill)
    return child


def _after_fork() -> None:
    """A forked process has none of its parent's threads."""
    global_compiler_lock.release()  # type: ignore[no-untyped-call]
    _kernels.thread = None
    _lock.release()


def _before_fork() -> None:
    """Waits until no thread holds a lock that it could not let go of in the forked process."""
    _lock.acquire()
    global_compiler_lock.acquire()  # type: ignore[no-untyped-call]


def _in_parent() -> None:
    global_compiler_lock.release()  # type: ignore[no-untyped-call]
    _lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_after_fork)
