"""How a signal ends a command: the command cleans up, says so in one line, and exits with the signal's status."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import click

from packhorse.jobs import ENDING_SIGNALS

_SEND_AGAIN_SECONDS = 0.1
"""Pause before a signal whose exception was lost is sent again."""


class Stopped(BaseException):
    """A signal ends the command. Not a KeyboardInterrupt, which libraries take as a request to end early."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def stopped_by_signals(message: str) -> Iterator[None]:
    """Ends the command at Ctrl-C, SIGTERM or SIGHUP with one line on stderr and exit status 130, 143 or 129.

    The code inside the `with` gets the exception `Stopped`, so that it can clean up. A signal that was ignored before,
    as under nohup, stays ignored. If C code loses the exception, as a callback of Numba's compiler or a destructor
    does, the signal is sent again until it is not lost.

    Args:
        message: the rest of the line, after the signal's name.
    """

    def ignore(number: int, frame: FrameType | None) -> None:
        """Does nothing. With SIG_IGN instead, Python would complain about a signal that is already pending."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        for other in ENDING_SIGNALS:  # a second signal must not interrupt the undoing
            signal.signal(other, ignore)
        raise Stopped(number)

    def send_again(lost: Any) -> None:
        """Sends a signal again whose exception was lost; from a thread, because what is raised here is lost as well."""
        if isinstance(lost.exc_value, Stopped):
            signal.signal(lost.exc_value.number, stop)
            threading.Timer(_SEND_AGAIN_SECONDS, os.kill, (os.getpid(), lost.exc_value.number)).start()
        else:
            hook(lost)

    hook, sys.unraisablehook = sys.unraisablehook, send_again
    handlers = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    for number, handler in handlers.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        yield
    except Stopped as stopped:
        click.echo(f"Stopped by {signal.Signals(stopped.number).name}: {message}", err=True)
        sys.exit(128 + stopped.number)
    finally:
        sys.unraisablehook = hook
        for number, handler in handlers.items():
            signal.signal(number, handler)
