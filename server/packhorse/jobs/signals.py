"""Signals that end a program: which they are, and holding them back for a while."""

import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a program: of Ctrl-C, of a scheduler, and of a closed terminal."""


@contextmanager
def held_signals(numbers: Collection[signal.Signals] = ENDING_SIGNALS) -> Iterator[None]:
    """Holds signals back from this thread until the block ends; threads and processes started inside never get them.

    Example:
        >>> with held_signals():
        ...     signal.raise_signal(signal.SIGTERM)  # comes when the block ends
        ...     signal.sigtimedwait({signal.SIGTERM}, 1).si_signo == signal.SIGTERM  # taken here instead
        True

    Args:
        numbers: the signals.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
