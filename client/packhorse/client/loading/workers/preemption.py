"""Workers that survive a preemption: its signals reach all processes, but the trainer must save before workers end.

Owns how a worker handles the signals by which nodes are taken away (Slurm, `timeout`, Kubernetes), and when it ends:
when its DataLoader ends it, or when its parent ends. The trainer's own handling of signals is up to the trainer. Leaves
how workers start to `workers/start`.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.context import BaseContext
from types import FrameType

ANNOUNCING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
)
"""Signals that only announce an end or interrupt a trainer. Workers ignore them."""
PREEMPTING = (*ANNOUNCING, signal.SIGTERM)
"""All signals that a preemption may send."""

FORK_SERVER_MODULE = "packhorse.client.loading.workers._fork_server"
"""The module that makes a fork server ignore these signals when it is imported."""
_CHECK_SECONDS = 1.0
"""Time between two checks that the parent is alive."""

_protected_pid = -1
"""The process that `outlive_preemption` has prepared; a fork is another process."""


@contextmanager
def starting_workers() -> Iterator[None]:
    """Blocks the signals in this thread; workers that are forked or spawned inherit that until `outlive_preemption`.

    Those of a fork server begin with the default handling, see `_fork_server`.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, PREEMPTING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def outlive_preemption(is_ending: Callable[[], bool]) -> None:
    """Lets this dataloader worker survive the signals of a preemption, and end when its parent ends.

    A second call in the same process does nothing, nor does a call in another thread than the main one, since only that
    one may set how signals are handled.

    Args:
        is_ending: whether the trainer is ending, so that the worker must obey SIGTERM.
    """
    global _protected_pid
    if _protected_pid == os.getpid() or threading.current_thread() is not threading.main_thread():
        return
    _protected_pid = os.getpid()
    for announcing in ANNOUNCING:
        signal.signal(announcing, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, partial(_end_if_told, is_ending))
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PREEMPTING)
    # PyTorch's worker also watches its parent, but only between batches, not while it waits for a server.
    threading.Thread(target=_end_with, args=(os.getppid(),), name="packhorse-parent", daemon=True).start()


def protected_fork_server() -> BaseContext:
    """Returns the context of a fork server that survives the signals, and has imported the loader.

    So torch is imported once; with "spawn", each worker would take seconds to import it.
    """
    # Not with the fork server: Python 3.11 unblocks SIGINT and SIGTERM in the thread that has started the tracker.
    with starting_workers():
        resource_tracker.ensure_running()
    context = multiprocessing.get_context("forkserver")
    # "__main__" is what Python preloads by default.
    context.set_forkserver_preload([FORK_SERVER_MODULE, "__main__", "packhorse.client.loading.dataset"])
    return context


def _end_if_told(is_ending: Callable[[], bool], number: int, frame: FrameType | None) -> None:
    """Handles SIGTERM: ends the worker if the DataLoader has ended it, or if the trainer is ending."""
    if is_ending() or _is_done(frame):
        os._exit(0)


def _is_done(frame: FrameType | None) -> bool:
    """Whether the DataLoader has set its workers' `done_event`, as it does before it sends SIGTERM.

    The event is a local variable of PyTorch's worker loop, which is on the stack of the interrupted code.
    """
    while frame is not None:
        if frame.f_code.co_name == "_worker_loop" and "done_event" in frame.f_locals:
            return bool(frame.f_locals["done_event"].is_set())
        frame = frame.f_back
    return False


def _end_with(parent_pid: int) -> None:
    """Runs in a thread: ends this worker once its parent or the trainer has ended.

    Parent and trainer are two processes if the parent is a fork server.
    """
    trainer = multiprocessing.parent_process()
    while os.getppid() == parent_pid and (trainer is None or trainer.is_alive()):
        time.sleep(_CHECK_SECONDS)
    sys.stderr.flush()
    os._exit(1)
