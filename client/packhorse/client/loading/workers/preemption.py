"""Workers that outlive a preemption: its signals reach the whole process group, and the trainer wants to save first.

Owns what a worker does with the signals by which nodes are taken away (Slurm, `timeout`, Kubernetes), and how it ends:
when its DataLoader ends it, or with its parent. What a trainer does with a signal is its own affair.
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
from multiprocessing.context import BaseContext
from types import FrameType

ANNOUNCING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
)
"""Signals that only announce an end or interrupt a trainer. Workers ignore them."""
PREEMPTING = (*ANNOUNCING, signal.SIGTERM)

FORK_SERVER_MODULE = "packhorse.client.loading.workers._fork_server"
_LOOK_UP_SECONDS = 1.0

_protected_pid = -1


@contextmanager
def starting_workers() -> Iterator[None]:
    """Holds the signals back from workers that are started meanwhile, until `outlive_preemption` in each of them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, PREEMPTING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def outlive_preemption(is_ending: Callable[[], bool]) -> None:
    """Lets this dataloader worker outlive the signals, once for each process.

    Args:
        is_ending: whether the trainer ends its workers, so that SIGTERM counts.
    """
    global _protected_pid
    if _protected_pid == os.getpid() or threading.current_thread() is not threading.main_thread():
        return
    _protected_pid = os.getpid()
    for each in ANNOUNCING:
        signal.signal(each, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, partial(_end_if_told, is_ending))
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PREEMPTING)
    # PyTorch looks after the parent too, but not while a worker waits for a server.
    threading.Thread(target=_end_with, args=(os.getppid(),), name="packhorse-parent", daemon=True).start()


def protected_fork_server() -> BaseContext:
    """Returns the context of a fork server that outlives the signals and has the loader imported."""
    context = multiprocessing.get_context("forkserver")
    # The server imports torch once, not each worker again; "spawn" would take seconds for every worker.
    context.set_forkserver_preload([FORK_SERVER_MODULE, "__main__", "packhorse.client.loading.dataset"])
    return context


def _end_if_told(is_ending: Callable[[], bool], number: int, frame: FrameType | None) -> None:
    """Ends the worker if its DataLoader or the end of the trainer sent the signal."""
    if is_ending() or _is_done(frame):
        os._exit(0)


def _is_done(frame: FrameType | None) -> bool:
    """Whether the DataLoader has told its workers to end, which it does before it sends SIGTERM."""
    while frame is not None:
        if frame.f_code.co_name == "_worker_loop" and "done_event" in frame.f_locals:
            return bool(frame.f_locals["done_event"].is_set())
        frame = frame.f_back
    return False


def _end_with(parent: int) -> None:
    """Ends this worker with its parent, and with the trainer, which a fork server stands between."""
    trainer = multiprocessing.parent_process()
    while os.getppid() == parent and (trainer is None or trainer.is_alive()):
        time.sleep(_LOOK_UP_SECONDS)
    sys.stderr.flush()
    os._exit(1)
