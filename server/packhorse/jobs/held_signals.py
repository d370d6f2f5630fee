"""Keeping signals that end a program waiting for a moment.

Owns that alone: what must not be torn apart is run inside, and the signal comes right after it.
"""

import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What Ctrl-C, a scheduler and a closed terminal send."""


@contextmanager
def held_signals(numbers: Collection[signal.Signals] = ENDING_SIGNALS) -> Iterator[None]:
    """Holds signals back from this thread; threads and processes that it starts meanwhile never get them.

    Example:
        >>> with held_signals():
        ...     signal.raise_signal(signal.SIGTERM)  # comes when the block ends
        ...     signal.sigtimedwait({signal.SIGTERM}, 1).si_signo == signal.SIGTERM  # taken here instead
        True

    Args:
        numbers: which.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
