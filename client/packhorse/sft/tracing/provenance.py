"""Where each character of a rendered chat comes from.

Owns text that remembers its origin while a template works on it: from which field of the row a character came, and
which message's iteration wrote it. Leaves the record of which iteration is running to `sft.tracing.trace`, templates to
`sft.template`, and what follows from an origin to `sft.turns` and `sft.unused`.

A text of the row is a `Traced` string while the template runs. It behaves like any string, and keeps the origins of its
characters when it is joined, cut, split or replaced. An operation that is not followed gives a plain string, like the
template's own words.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, SupportsIndex, cast

_UNKNOWN = -1
"""`Run.at` of characters whose place in a leaf is lost."""


class Leaf(NamedTuple):
    """One text in a row, such as a content or a function's name."""

    message: int | None
    """Number of the message that holds it; None for the tools."""
    path: tuple[str | int, ...]
    """Keys and indexes that lead to it from its message, such as `("content", 0, "text")`."""
    text: str


class Dump(NamedTuple):
    """A value that was written as JSON, or a text that was changed so that positions in it are lost.

    All its leaves came out, but which character comes from which is not known.
    """

    value: Any
    is_python: bool = False
    """Whether it was written as Python writes it, such as `{'a': None}`, which no model should learn."""

    def leaves(self) -> Iterator[Leaf]:
        """Yields the texts in it."""
        yield from leaves_of(self.value)


class Run(NamedTuple):
    """Consecutive characters of one origin. A text's origins are a tuple of runs, in its order and without gaps."""

    length: int
    """Number of characters."""
    source: Leaf | Dump | None
    """The text or value of the row from which they come; None for the template's own words."""
    at: int = _UNKNOWN
    """Where they begin in the leaf; -1 if that is not known."""
    writer: int | None = None
    """Number of the message whose iteration of the template's loop wrote them; None if no iteration was running."""
    is_generated: bool = False
    """Whether they are in a `{% generation %}` block."""


def placed(runs: Iterable[Run]) -> Iterator[tuple[int, Run]]:
    """Yields (begin in the text, run) for each of a text's runs."""
    begin = 0
    for run in runs:
        yield begin, run
        begin += run.length


def leaves_of(value: Any) -> Iterator[Leaf]:
    """Yields the leaves from which the traced texts of a value, its keys included, come."""
    if type(value) is Traced:
        for run in value._runs:
            if isinstance(run.source, Leaf):
                yield run.source
            elif run.source is not None:
                yield from run.source.leaves()
    elif isinstance(value, dict):
        for key, item in value.items():
            if type(key) is Traced:
                yield from leaves_of(key)
            yield from leaves_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves_of(item)


class Collector(Protocol):
    """What texts need of the record of a rendering, which is a `Trace`."""

    def collect(self, piece: str, runs: list[Run]) -> None:
        """Adds the runs of a text to those of a longer text."""


class Traced(str):
    """Text that knows the origin of its characters.

    Its methods return what those of `str` return, as traced text. Methods that are not defined here return plain text.
    """

    __slots__ = ("_runs", "_trace")
    _runs: tuple[Run, ...]
    """Origins of all characters, in order; empty if they are unknown."""
    _trace: "Collector | None"
    """The record of the rendering that made it."""

    def __new__(cls, text: str = "", runs: tuple[Run, ...] = (), trace: "Collector | None" = None) -> "Traced":
        """Makes a text with these origins; without runs, a text of unknown origin."""
        self = str.__new__(cls, text)
        self._runs = runs
        self._trace = trace
        return self

    def __str__(self) -> str:
        """Returns itself: a template writes `str(x)`, which must keep the origins."""
        return self

    def __add__(self, other: str) -> str:
        """Joins two texts; leaves it to a text for web pages, which escapes the text to which it is added."""
        if not isinstance(other, str) or hasattr(other, "__html__"):
            return NotImplemented
        return _with_origins(str.__add__(self, other), (self, other))

    def __radd__(self, other: str) -> str:
        """Joins a plain text and this one, for `plain + traced`."""
        return _with_origins(str.__add__(other, self), (other, self)) if isinstance(other, str) else NotImplemented

    def __getitem__(self, index: SupportsIndex | slice) -> str:
        """Returns what `str` does, with origins."""
        if not isinstance(index, slice):
            at = index.__index__()
            begin = at + len(self) if at < 0 else at
            str.__getitem__(self, index)  # raises an IndexError if there is no such character
            return self._cut(begin, begin + 1)
        begin, end, step = index.indices(len(self))
        return self._cut(begin, max(begin, end)) if step == 1 else str.__getitem__(self, index)

    def __iter__(self) -> Iterator[str]:
        """Returns what `str` does, with origins."""
        return (self._cut(at, at + 1) for at in range(len(self)))

    def strip(self, chars: str | None = None, /) -> str:
        """Returns what `str` does, with origins."""
        return cast(Traced, self.lstrip(chars)).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> str:
        """Returns what `str` does, with origins."""
        return self._cut(len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars: str | None = None, /) -> str:
        """Returns what `str` does, with origins."""
        return self._cut(0, len(str.rstrip(self, chars)))

    def removeprefix(self, prefix: str, /) -> str:
        """Returns what `str` does, with origins."""
        return self._cut(len(self) - len(str.removeprefix(self, prefix)), len(self))

    def removesuffix(self, suffix: str, /) -> str:
        """Returns what `str` does, with origins."""
        return self._cut(0, len(str.removesuffix(self, suffix)))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """Returns what `str` does, with origins."""
        return self._located(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """Returns what `str` does, with origins."""
        return self._located(str.rsplit(self, sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[str]:
        """Returns what `str` does, with origins."""
        lines = self._located(str.splitlines(self, keepends=True), "")
        return [line if keepends else line[: len(str.splitlines(line)[0])] for line in lines]

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        """Returns what `str` does, with origins."""
        return cast(tuple[str, str, str], tuple(self._located(str.partition(self, sep), "")))

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        """Returns what `str` does, with origins."""
        return cast(tuple[str, str, str], tuple(self._located(str.rpartition(self, sep), "")))

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        """Returns what `str` does, with origins."""
        return joined_with(new, self.split(old, count)) if old else str.replace(self, old, new, count)

    def join(self, parts: Iterable[str], /) -> str:
        """Returns what `str` does, with origins."""
        return joined_with(self, parts)

    def upper(self) -> str:
        """Returns what `str` does, with origins."""
        return self._changed(str.upper(self))

    def lower(self) -> str:
        """Returns what `str` does, with origins."""
        return self._changed(str.lower(self))

    def title(self) -> str:
        """Returns what `str` does, with origins."""
        return self._changed(str.title(self))

    def capitalize(self) -> str:
        """Returns what `str` does, with origins."""
        return self._changed(str.capitalize(self))

    def _changed(self, text: str) -> str:
        """Returns this text with changed letters; if its length changes (as of "ß"), positions in leaves are lost."""
        if len(text) == len(self):
            return Traced(text, self._runs, self._trace)
        return Traced(text, (Run(len(text), Dump(self)),), self._trace)

    def _located(self, parts: Sequence[str], sep: str | None) -> list[str]:
        """Returns parts of this text, one after the other with `sep` between them, as traced text.

        With `sep` None, any white space may be between them, so each part is searched for. Lines, and the three parts
        of `partition`, have nothing between them: `sep` is "".
        """
        found: list[str] = []
        at = 0
        for part in parts:
            at = str.find(self, part, at) if sep is None else at
            found.append(self._cut(at, at + len(part)))
            at += len(part) + len(sep or "")
        return found

    def _cut(self, begin: int, end: int) -> str:
        """Returns the characters [begin, end) with their origins."""
        if begin == 0 and end >= len(self):
            return self
        text = str.__getitem__(self, slice(begin, end))
        runs: list[Run] = []
        at = 0
        for length, source, place, writer, is_generated in self._runs:
            run_begin, run_end = max(begin - at, 0), min(end - at, length)
            if run_begin < run_end:
                new_place = _UNKNOWN if place == _UNKNOWN else place + run_begin
                runs.append(Run(run_end - run_begin, source, new_place, writer, is_generated))
            at += length
        return Traced(text, tuple(runs), self._trace)


def joined(parts: Iterable[str]) -> str:
    """Joins texts as `"".join` does, and keeps their origins; see `Trace.collect` for characters without a writer."""
    parts = list(parts)
    return _with_origins("".join(parts), parts)


def _with_origins(text: str, parts: Sequence[str]) -> str:
    """Returns `text`, the parts joined, with the parts' origins; as it is if no part belongs to a trace."""
    trace = _trace_among(parts)
    if trace is None:
        return text
    runs: list[Run] = []
    for part in parts:
        trace.collect(part, runs)
    return Traced(text, tuple(runs), trace)


def _trace_among(parts: Sequence[str]) -> Collector | None:
    """Returns the record to which the first traced part belongs; None if no part belongs to one."""
    for part in parts:
        if type(part) is Traced and part._trace is not None:
            return part._trace
    return None


def written(value: Any) -> Any:
    """Returns what a template writes for a value: a list or mapping as Python writes it, traced; others as they are."""
    if not isinstance(value, list | dict):
        return value
    text = repr(value)
    return Traced(text, (Run(len(text), Dump(value, is_python=True)),))


def joined_with(sep: str, parts: Iterable[Any]) -> str:
    """Joins texts as `sep.join` does, and keeps their origins."""
    parts = list(parts)
    return joined(part for number, text in enumerate(parts) for part in ((sep, text) if number else (text,)))
