"""Showing the progress of a job: bars on a terminal, elsewhere a plain line every few seconds, nothing when quiet.

Owns how progress looks. A task is here whatever gets a bar of its own, such as a pass over the rows; the job calls
`task` and says how far it is. Leaves running tasks to `engines`.
"""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TextIO, TypeVar

_Item = TypeVar("_Item")

Advance = Callable[[int], None]
"""A function that adds to the number of finished units of a task."""

Total = int | Callable[[], int] | None
"""Number of units in a task: a number, a function that estimates it each time it is shown, or None if unknown."""

_SECONDS_BETWEEN_LINES = 5.0
"""Time between two lines about a task, and from its beginning to its first line."""
_SECONDS_TO_START = 60.0
"""Time after which the time left is always shown. Before, it is shown only if 1 % is done: while processes start and
loops compile, the rate says little."""


class Progress(ABC):
    """Shows how far each task of a job is; `show_progress` gives one."""

    @abstractmethod
    def task(self, name: str, total: Total = None, unit: str = "") -> AbstractContextManager[Advance]:
        """Shows a task from the beginning of a `with` block to its end.

        Args:
            name: the task's name, e.g. "counting lengths".
            total: number of units in the task.
            unit: the units' name, in the plural, e.g. "rows".

        Returns:
            A context manager, which gives the function to call with the number of units that were finished.
        """

    def track(self, items: Iterable[_Item], name: str, total: int | None = None, unit: str = "") -> Iterator[_Item]:
        """Yields the items, and counts each as finished when the next one is requested."""
        with self.task(name, total, unit) as advance:
            for item in items:
                yield item
                advance(1)


@contextmanager
def show_progress(*, quiet: bool = False, stream: TextIO | None = None) -> Iterator[Progress]:
    """Gives the progress of one job.

    Example:
        >>> with show_progress(quiet=True) as progress:
        ...     sum(progress.track([1, 2, 3], "adding", total=3, unit="numbers"))
        6

    Args:
        quiet: whether to show nothing.
        stream: the stream to write to: bars if it is a terminal, else a line every 5 seconds; None for stderr.
    """
    stream = stream or sys.stderr
    if quiet:
        yield _Silence()
    elif not stream.isatty():
        yield Lines(stream)
    else:
        # Imported here, because the import takes time, and only a terminal needs it.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with RichProgress(*columns, console=Console(file=stream), transient=True) as bars:
            yield _Bars(bars)


class _Silence(Progress):
    """Shows nothing."""

    @contextmanager
    def task(self, name: str, total: Total = None, unit: str = "") -> Iterator[Advance]:
        yield lambda count: None


class _Bars(Progress):
    """Draws a bar for each task."""

    def __init__(self, bars: Any) -> None:
        self._bars = bars

    @contextmanager
    def task(self, name: str, total: Total = None, unit: str = "") -> Iterator[Advance]:
        bar = self._bars.add_task(f"{name} ({unit})" if unit else name, total=_units_now(total), rate="")
        began = time.monotonic()
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            rate = done / max(time.monotonic() - began, 1e-3)  # the clock may not have moved yet
            self._bars.update(bar, completed=done, total=_units_now(total), rate=f"{rate:,.0f}/s")

        yield advance
        full = done or 1  # a bar of 0 units would never look full, and `total` may have been an estimate
        self._bars.update(bar, total=full, completed=full)


class Lines(Progress):
    """Writes a line about a task every five seconds, and one at its end; nothing about a task that ends sooner."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock

    @contextmanager
    def task(self, name: str, total: Total = None, unit: str = "") -> Iterator[Advance]:
        """See `Progress.task`."""
        began = last_shown = self._clock()
        done = 0
        unit_text = f" {unit}" if unit else ""

        def advance(count: int) -> None:
            """Counts finished units, and writes a line if the last line is five seconds old."""
            nonlocal done, last_shown
            done += count
            now = self._clock()
            if now - last_shown < _SECONDS_BETWEEN_LINES:
                return
            last_shown = now
            rate = done / (now - began)
            units = _units_now(total)
            of_total = share = time_left = ""
            if units and rate:
                of_total = f" of {units:,}" if isinstance(total, int) else f" of about {units:,}"
                share = f" ({done / units:.0%})"
                if 100 * done >= units or now - began >= _SECONDS_TO_START:
                    time_left = f", {_duration(max(0, units - done) / rate)} left"
            line = f"{name}: {done:,}{of_total}{unit_text}{share}, {rate:,.0f}/s{time_left}"
            print(line, file=self._stream, flush=True)

        yield advance
        seconds = self._clock() - began
        if seconds >= _SECONDS_BETWEEN_LINES:
            done_text = f" {done:,}{unit_text}" if done else ""
            print(f"{name}:{done_text} done in {_duration(seconds)}", file=self._stream, flush=True)


def _units_now(total: Total) -> int | None:
    """Returns the number of units of a total, as it is or as it is estimated now; None if it is unknown."""
    return total() if callable(total) else total


def _duration(seconds: float) -> str:
    """Returns e.g. 42 s, 3:05 min or 2:03:05 h."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02} h"
    return f"{minutes}:{rest:02} min" if minutes else f"{rest} s"
