"""Compiling ahead of requests: a child process compiles the kernels, and meanwhile requests run plain forms.

A kernel is a loop that Numba compiles. Owns the state of this process's kernels, the thread that waits for them, and
the child process, so that the memory of the compiler is freed when the child ends. The caller of `compile_ahead` says
which kernels there are. Leaves plain forms to `plain`.
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
"""Time between two looks into the cache for what the child has compiled. A look takes about 1 ms if nothing is new."""


class _Kernels:
    """The state of this process's kernels; there is one object, `_kernels`."""

    def __init__(self) -> None:
        self.load_all: Callable[[], None] | None = None
        """Loads all kernels from the cache, or compiles them. None in a process that does not compile ahead: there
        each request compiles the kernel that it needs."""
        self.command: Sequence[str] = ()
        """Arguments of the Python process that compiles all kernels."""
        self.thread: threading.Thread | None = None
        """The thread that runs `_get_all_compiled`; None until it is started."""


_kernels = _Kernels()
_lock = threading.Lock()


def compile_ahead(load_all: Callable[[], None], command: Sequence[str], *, at_once: bool = True) -> None:
    """Lets requests of this process run plain forms of kernels that the cache lacks, while a child compiles them.

    Args:
        load_all: loads all kernels from the cache, or compiles those that it lacks, in the order in which requests need
            them.
        command: arguments of a Python process that calls `end_with_parent` and then compiles the same kernels.
        at_once: whether to load all kernels now and start the child if the cache lacks one. Otherwise each request
            loads the kernel that it needs, and the first one that the cache lacks starts the child.
    """
    if at_once and _load_if_cached(load_all):
        return
    with _lock:
        if _kernels.thread is None:
            _kernels.load_all, _kernels.command = load_all, command
    if at_once:
        _start_thread()


def runs_plain(compile_for: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Returns whether a call of a kernel has to run its plain form, because the compiled one is not there yet.

    Args:
        compile_for: Numba's method of the kernel that loads or compiles it for given arguments, and returns it.
        args: the arguments of the call.
    """
    if _kernels.load_all is None or _kernels.thread is threading.current_thread():
        return False
    if _kernels.thread is None:
        try:
            with only_from_cache():
                compile_for(*args)
                return False
        except NotCompiledError:
            _start_thread()
    return _kernels.thread is None or _kernels.thread.is_alive()


def end_with_parent() -> None:
    """Ends this process, started by `compile_ahead`, as soon as its parent ends."""

    def wait() -> None:
        # The parent holds the other end of stdin and writes nothing: `read` returns when the parent is gone.
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _start_thread() -> None:
    """Starts the thread that gets the kernels, unless it was started before."""
    with _lock:
        if _kernels.thread is None:
            _kernels.thread = threading.Thread(target=_get_all_compiled, name="kernels", daemon=True)
            _kernels.thread.start()


def _get_all_compiled() -> None:
    """Loads all kernels as soon as the cache has them.

    Starts the child if no other process compiles. Compiles in this process if there is no cache, or if the child ended
    and the cache still lacks a kernel.
    """
    load_all = _kernels.load_all
    assert load_all is not None
    child: subprocess.Popen[bytes] | None = None
    try:
        with ExitStack() as stack:
            while not _load_if_cached(load_all):
                folder = cache_folder()
                if folder is None or (child is not None and child.poll() is not None):
                    load_all()
                    break
                if child is None:
                    try:
                        stack.enter_context(compiling_alone(folder))
                    except LockHeldError:
                        pass  # another process compiles into the same cache, so this one waits for its kernels
                    else:
                        _LOG.info("kernels are compiled, once after an install; requests are served meanwhile, slower")
                        child = _start_child(stack, _kernels.command)
                time.sleep(_POLL_SECONDS)
        if child is not None:
            _LOG.info("all kernels are ready")
    except Exception:
        _LOG.exception("a kernel could not be compiled ahead; the first request that needs it compiles it")


def _load_if_cached(load_all: Callable[[], None]) -> bool:
    """Loads all kernels if the cache has them, and returns whether it has."""
    try:
        with only_from_cache():
            load_all()
    except NotCompiledError:
        return False
    return True


def _start_child(stack: ExitStack, command: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Starts the child process; `stack` kills it and waits for its end."""
    child = subprocess.Popen(
        [sys.executable, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        process_group=0,  # so that ^C in a terminal reaches only the parent
    )
    stack.callback(child.communicate)
    stack.callback(child.kill)
    return child


def _before_fork() -> None:
    """Takes `_lock` and the compiler's before a fork: one that another thread held would stay locked in the child."""
    _lock.acquire()
    global_compiler_lock.acquire()  # type: ignore[no-untyped-call]


def _in_parent() -> None:
    """Releases both locks in the parent after a fork."""
    global_compiler_lock.release()  # type: ignore[no-untyped-call]
    _lock.release()


def _in_child() -> None:
    """Releases both locks in the forked process, which has none of its parent's threads and may start its own."""
    global_compiler_lock.release()  # type: ignore[no-untyped-call]
    _kernels.thread = None
    _lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
