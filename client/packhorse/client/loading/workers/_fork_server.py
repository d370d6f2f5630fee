"""Lets a loader's fork server survive a preemption: importing this module in a fork server makes it ignore signals.

The children of the fork server begin with the default handling of signals, so that processes of other code end as
usual. A loader's workers then change it (`workers/preemption`). In any other process this module does nothing.
"""

import os
import signal
import sys

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals of a preemption whose default is to end the process."""


def _restore_defaults() -> None:
    """Lets these signals, and SIGINT, end this process again."""
    for each in _ENDING:
        signal.signal(each, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))


def _is_fork_server() -> bool:
    """Whether this process is a fork server, by its command line; `__main__` may be the script by now."""
    return any("from multiprocessing.forkserver import main" in argument for argument in sys.orig_argv)


if _is_fork_server():
    # First ignored, then unblocked, so that a signal that waits does not end the process.
    for _each in _ENDING:
        signal.signal(_each, signal.SIG_IGN)
    # The process inherits that `starting_workers` blocks them.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    # A fork server ignores SIGINT by itself, but only once it has imported all that it preloads.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    os.register_at_fork(after_in_child=_restore_defaults)
