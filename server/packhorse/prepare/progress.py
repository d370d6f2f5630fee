"""Progress bars on a terminal, and nothing elsewhere.

Owns how passes over tasks are shown; leaves running them to the engine.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from packhorse.prepare.engines import Engine

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


class Passes:
    """Runs one pass after the other on an engine and shows how far each is."""

    def __init__(self, engine: Engine, bars: Progress) -> None:
        self._engine = engine
        self._bars = bars

    def run(
        self, name: str, function: Callable[[_Task], _Result], tasks: Sequence[_Task], sizes: Sequence[int]
    ) -> Iterator[_Result]:
        """Yields the results in order.

        Args:
            name: what the bar says.
            function: top-level, of one task.
            tasks: what to call it with.
            sizes: each task's share of the bar.
        """
        bar: Any = self._bars.add_task(name, total=sum(sizes))
        for result, size in zip(self._engine.map(function, tasks), sizes, strict=True):
            self._bars.advance(bar, size)
            yield result

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Shows work that cannot say how far it is."""
        bar = self._bars.add_task(name, total=None)
        yield
        self._bars.update(bar, total=1, completed=1)


@contextmanager
def shown(engine: Engine, wanted: bool) -> Iterator[Passes]:
    """Gives `Passes` whose bars stand on stderr, where that is a terminal and they are wanted."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:16}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not (wanted and console.is_terminal)) as bars:
        yield Passes(engine, bars)
