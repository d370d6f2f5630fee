"""The signals of a process that serves, as events of its loop: `Signals`.

Owns what each signal means, and the end of a process that is still there when its time is over. Leaves draining to
`running`, and the signals of a process with children to `processes`.
"""

import asyncio
import logging
import os
import signal
import threading
from dataclasses import dataclass
from typing import Self

from packhorse.server.app.config import OVERDUE_SECONDS

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False, kw_only=True)
class Signals:
    """An event for each signal that the process listens to."""

    stopping: asyncio.Event
    """The first SIGTERM or SIGINT."""
    hurrying: asyncio.Event
    """The second of these."""
    look_now: asyncio.Event
    """SIGHUP."""

    @classmethod
    def caught(cls, grace_seconds: float) -> Self:
        """Listens to signals in the running loop, and ends a process that is there long after the first one.

        Args:
            grace_seconds: how long draining may take; the process is ended `OVERDUE_SECONDS` later.
        """
        signals = cls(stopping=asyncio.Event(), hurrying=asyncio.Event(), look_now=asyncio.Event())

        def stop() -> None:
            if signals.stopping.is_set():
                signals.hurrying.set()
                return
            signals.stopping.set()
            overdue = threading.Timer(grace_seconds + OVERDUE_SECONDS, os._exit, (1,))
            overdue.daemon = True
            overdue.start()

        def look() -> None:
            _LOG.info("SIGHUP: looking for changed datasets; SIGTERM drains and ends the server")
            signals.look_now.set()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        loop.add_signal_handler(signal.SIGHUP, look)
        return signals
