"""Lets a fork server outlive a preemption; imported by the fork server of a loader alone, for this effect.

Its own children begin with the signals as they are by default, so that other code's processes end as usual; a loader's
workers choose for themselves (`_preemption`). Imported by anybody else, it does nothing.
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
