"""Signals that end a command: its work is undone, one line says so, and the exit status is the shell's.

Owns what a signal raises and how it is shown; leaves the undoing to the work itself, which sees an exception.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import click

from packhorse.jobs import ENDING_SIGNALS


class Stopped(BaseException):
    """A signal ended the command. No KeyboardInterrupt, which libraries take as a request to end early."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def stopped_by_signals(message: str) -> Iterator[None]:
    """Turns Ctrl-C, SIGTERM and SIGHUP inside into one line and exit status 130, 143 or 129.

    A signal that was ignored before, as under nohup, stays ignored.

    Args:
        message: what the line says behind the signal's name.
    """
    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _stop)
    try:
        yield
    except Stopped as stopped:
        click.echo(f"Stopped by {signal.Signals(stopped.number).name}: {message}", err=True)
        sys.exit(128 + stopped.number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    for other in ENDING_SIGNALS:  # a second one must not interrupt the undoing
        signal.signal(other, _go_on)
    raise Stopped(number)


def _go_on(number: int, frame: FrameType | None) -> None:
    """Not SIG_IGN, of which Python complains when the signal is there already."""
