"""Lets a loader's fork server outlive a preemption: the fork server imports this module, for this effect only.

The children of the fork server begin with the default signals, so that other code's processes end as usual; a loader's
workers choose for themselves (`workers.preemption`). In any other process this module does nothing.
"""

import multiprocessing.forkserver
import os
import signal
import sys

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def _as_by_default() -> None:
    for each in _ENDING:
        signal.signal(each, signal.SIG_DFL)


def _is_fork_server() -> bool:
    """Whether this process is a fork server: it runs `from multiprocessing.forkserver import main`."""
    return getattr(sys.modules["__main__"], "main", None) is multiprocessing.forkserver.main


if _is_fork_server():
    for _each in _ENDING:
        signal.signal(_each, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_ENDING, signal.SIGINT))  # a loader holds them back while it starts
    os.register_at_fork(after_in_child=_as_by_default)
