"""Lets a loader's fork server survive a preemption: importing this module in a fork server makes it ignore signals.

The children of the fork server begin with the default handling of signals, so that processes of other code end as
usual. A loader's workers then change it (`workers/preemption`). In any other process this module does nothing.
"""

import multiprocessing.forkserver
import os
import signal
import sys

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals of a preemption whose default is to end the process."""


def _restore_defaults() -> None:
    """Lets these signals end this process again."""
    for each in _ENDING:
        signal.signal(each, signal.SIG_DFL)


def _is_fork_server() -> bool:
    """Whether this process is a fork server: it runs `from multiprocessing.forkserver import main`."""
    return getattr(sys.modules["__main__"], "main", None) is multiprocessing.forkserver.main


if _is_fork_server():
    # First ignored, then unblocked, so that a signal that waits does not end the process.
    for _each in _ENDING:
        signal.signal(_each, signal.SIG_IGN)
    # The process inherits that `starting_workers` blocks them, and SIGINT, which a fork server ignores by itself.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_ENDING, signal.SIGINT))
    os.register_at_fork(after_in_child=_restore_defaults)
