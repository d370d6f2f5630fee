"""Where each character of a rendered chat comes from.

Owns text that remembers its origin while a template works on it, and the record of one rendering: which message's
iteration wrote a character, and from which field of the row it came. Leaves templates to `sft.template`, and what
follows from an origin to `sft.turns` and `sft.unused`.

Text of a row is a `Traced` string. It behaves as any string does, and keeps the origins of its characters when it is
joined, cut, split or replaced. An operation that is not followed gives a plain string, as a template's own words are.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, SupportsIndex, cast

from packhorse.sft.messages import REASONING


class Leaf(NamedTuple):
    """A text in a row."""

    message: int | None
    """The message that holds it; None for the tools."""
    path: tuple[str | int, ...]
    """Keys and indexes that lead to it, from its message: `("content", 0, "text")`."""
    text: str


class Dump(NamedTuple):
    """A value that was written as JSON, or changed in a way that keeps no positions: its leaves came out as a whole."""

    value: Any
    is_python: bool = False
    """Whether it was written as Python writes it, which no model should learn."""

    def leaves(self) -> Iterator[Leaf]:
        """Yields the texts in it."""
        yield from leaves_of(self.value)


class Run(NamedTuple):
    """Characters of one origin."""

    length: int
    source: Leaf | Dump | None
    """Where they stand in the row; None for the template's own words."""
    at: int
    """Where they begin in the leaf; -1 where that is not known."""
    writer: int | None
    """The message whose iteration wrote them; None outside of all."""
    is_generated: bool
    """Whether they are in a `{% generation %}` block."""


def leaves_of(value: Any) -> Iterator[Leaf]:
    """Yields the leaves from which a value's texts, keys included, come."""
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


class Traced(str):
    """Text that knows the origin of its characters."""

    __slots__ = ("_runs", "_trace")
    _runs: tuple[Run, ...]
    _trace: "Trace | None"

    def __new__(cls, text: str = "", runs: tuple[Run, ...] = (), trace: "Trace | None" = None) -> "Traced":
        """Without runs, text of unknown origin."""
        self = str.__new__(cls, text)
        self._runs = runs
        self._trace = trace
        return self

    def __str__(self) -> str:
        """Itself: `str(x)` is how a template writes."""
        return self

    def __add__(self, other: str) -> str:
        """As of strings; text for web pages escapes what it is added to."""
        if not isinstance(other, str) or hasattr(other, "__html__"):
            return NotImplemented
        return _with_origins(str.__add__(self, other), (self, other))

    def __radd__(self, other: str) -> str:
        """As of strings; a plain string does not ask the right one unless it must."""
        return _with_origins(str.__add__(other, self), (other, self)) if isinstance(other, str) else NotImplemented

    def __getitem__(self, index: SupportsIndex | slice) -> str:
        """As of strings."""
        if not isinstance(index, slice):
            at = index.__index__()
            begin = at + len(self) if at < 0 else at
            str.__getitem__(self, index)  # raises where there is none
            return self._cut(begin, begin + 1)
        begin, end, step = index.indices(len(self))
        return self._cut(begin, max(begin, end)) if step == 1 else str.__getitem__(self, index)

    def __iter__(self) -> Iterator[str]:
        """As of strings."""
        return (self._cut(at, at + 1) for at in range(len(self)))

    def strip(self, chars: str | None = None, /) -> str:
        """As of strings."""
        return cast(Traced, self.lstrip(chars)).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> str:
        """As of strings."""
        return self._cut(len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars: str | None = None, /) -> str:
        """As of strings."""
        return self._cut(0, len(str.rstrip(self, chars)))

    def removeprefix(self, prefix: str, /) -> str:
        """As of strings."""
        return self._cut(len(self) - len(str.removeprefix(self, prefix)), len(self))

    def removesuffix(self, suffix: str, /) -> str:
        """As of strings."""
        return self._cut(0, len(str.removesuffix(self, suffix)))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """As of strings."""
        return self._found(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """As of strings."""
        return self._found(str.rsplit(self, sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[str]:
        """As of strings."""
        ends = self._found(str.splitlines(self, True), "")
        return [line if keepends else line[: len(str.splitlines(line)[0])] for line in ends]

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        """As of strings."""
        return cast(tuple[str, str, str], tuple(self._found(str.partition(self, sep), "")))

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        """As of strings."""
        return cast(tuple[str, str, str], tuple(self._found(str.rpartition(self, sep), "")))

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        """As of strings."""
        return joined_with(new, self.split(old, count)) if old else str.replace(self, old, new, count)

    def join(self, parts: Iterable[str], /) -> str:
        """As of strings."""
        return joined_with(self, parts)

    def upper(self) -> str:
        """As of strings."""
        return self._changed(str.upper(self))

    def lower(self) -> str:
        """As of strings."""
        return self._changed(str.lower(self))

    def title(self) -> str:
        """As of strings."""
        return self._changed(str.title(self))

    def capitalize(self) -> str:
        """As of strings."""
        return self._changed(str.capitalize(self))

    def _changed(self, text: str) -> str:
        if len(text) == len(self):
            return Traced(text, self._runs, self._trace)
        return Traced(text, (Run(len(text), Dump(self), -1, None, False),), self._trace)

    def _found(self, parts: Sequence[str], sep: str | None) -> list[str]:
        """The parts of this text that stand in it one after the other, `sep` between them."""
        found: list[str] = []
        at = 0
        for part in parts:
            at = str.find(self, part, at) if sep is None else at
            found.append(self._cut(at, at + len(part)))
            at += len(part) + len(sep or "")
        return found

    def _cut(self, begin: int, end: int) -> str:
        if begin == 0 and end >= len(self):
            return self
        text = str.__getitem__(self, slice(begin, end))
        runs: list[Run] = []
        at = 0
        for run in self._runs:
            first, last = max(begin - at, 0), min(end - at, run[0])
            if first < last:
                place = run[2] + first if run[2] >= 0 else -1
                runs.append(Run(last - first, run[1], place, run[3], run[4]))
            at += run[0]
        return Traced(text, tuple(runs), self._trace)


def joined(parts: Iterable[str]) -> str:
    """Joins texts as `"".join` does, and notes which message's iteration joined them."""
    parts = list(parts)
    return _with_origins("".join(parts), parts)


def _with_origins(text: str, parts: Sequence[str]) -> str:
    for part in parts:
        if type(part) is Traced and part._trace is not None:
            break
    else:
        return text
    trace = part._trace
    runs: list[Run] = []
    for part in parts:
        trace.collect(part, runs)
    return Traced(text, tuple(runs), trace)


def written(value: Any) -> Any:
    """What a template writes of a value that is no text: lists and mappings as Python does."""
    if not isinstance(value, list | dict):
        return value
    text = repr(value)
    return Traced(text, (Run(len(text), Dump(value, True), -1, None, False),))


class _TracedList(list[Any]):
    """A content in parts that says so where a template takes it for text."""

    def __str__(self) -> str:
        return cast(str, written(self))


class _TracedDict(dict[str, Any]):
    """A content that is an object, likewise."""

    def __str__(self) -> str:
        return cast(str, written(self))


def joined_with(sep: str, parts: Iterable[Any]) -> str:
    """Joins texts as `sep.join` does."""
    parts = list(parts)
    return joined(part for number, text in enumerate(parts) for part in ((sep, text) if number else (text,)))


class Trace:
    """The record of one rendering."""

    __slots__ = ("_own", "_position", "_stack", "is_crossed", "leaves", "messages", "shown", "tools", "writer")

    def __init__(self, messages: Sequence[Mapping[str, Any]], own: Iterable[int], tools: Any = None) -> None:
        """`own` are the messages that the model wrote. `messages` and `tools` of it are copies with traced texts."""
        self.leaves: list[Leaf] = []
        """The texts of the row, in order."""
        self.messages = [self._message(number, message) for number, message in enumerate(messages)]
        self.tools = self._traced(tools, None, ("tools",)) if tools is not None else None
        self.writer: int | None = None
        """The message whose iteration runs."""
        self.is_crossed = False
        """Whether an iteration wrote text that the iteration of a message of the model had made."""
        self.shown: tuple[Any, Any] | None = None
        """A rendering, and what it shows of the row, for whoever asks twice."""
        self._own = frozenset(own)
        self._position = {id(message): number for number, message in enumerate(self.messages)}
        self._stack: list[int | None] = []

    def enter(self) -> None:
        """A loop, or a macro, begins."""
        self._stack.append(None)

    def leave(self) -> None:
        """It ends."""
        self._stack.pop()
        self._set_writer()

    def begin(self, values: Sequence[Any]) -> None:
        """An iteration begins. `values` are its variables, and lists which it takes by a variable's number."""
        self._stack[-1] = self._message_of(values)
        self._set_writer()

    def write(self, piece: str, runs: list[Run]) -> None:
        """Adds a piece of the text to its runs."""
        self.collect(piece, runs, self._cross)

    def gathered(self, value: str | list[Any]) -> Any:
        """Returns a text, or a list of texts, that the running iteration made, and another may write."""
        if self.writer is None:
            return value
        if isinstance(value, list):
            return [self.gathered(item) if type(item) is str else item for item in value]
        runs: list[Run] = []
        self.collect(value, runs)
        return Traced(value, tuple(runs), self)

    def collect(self, piece: str, runs: list[Run], seen: Callable[[Run], object] | None = None) -> None:
        """Adds a text's runs to the runs of a longer text; what had no origin gets the running iteration's."""
        writer = self.writer
        if type(piece) is not Traced or not piece._runs:
            if piece:
                runs.append(Run(len(piece), None, -1, writer, False))
            return
        for run in piece._runs:
            if writer is not None and run[3] != writer:
                if run[3] is None:
                    run = Run(run[0], run[1], run[2], writer, run[4])
                elif seen is not None:
                    seen(run)
            runs.append(run)

    def _cross(self, run: Run) -> None:
        if run.writer in self._own:
            self.is_crossed = True

    def _set_writer(self) -> None:
        """What another's message makes within the model's is another's, in whichever order they are nested."""
        found: int | None = None
        for number in self._stack:
            if number is not None and (found is None or found in self._own or number not in self._own):
                found = number
        self.writer = found

    def _message_of(self, values: Sequence[Any]) -> int | None:
        indexes = [value for value in values if type(value) is int]
        for value in values:
            if isinstance(value, list) and indexes:
                values = [*values, *(value[at] for at in indexes if -len(value) <= at < len(value))]
        for value in values:
            number = self._position.get(id(value))
            if number is not None:
                return number
        copies = {leaf.message for value in values if isinstance(value, dict) for leaf in _own_leaves(value)}
        return next(iter(copies)) if len(copies) == 1 else None

    def _message(self, number: int, message: Mapping[str, Any]) -> dict[str, Any]:
        """Copies a message; reasoning under several names is one leaf."""
        copy: dict[str, Any] = {}
        for key, value in message.items():
            twin = None
            if key in REASONING and isinstance(value, str):
                twin = next((name for name in REASONING if name in copy and message[name] is value), None)
            copy[key] = self._traced(value, number, (key,)) if twin is None else copy[twin]
        content = copy.get("content")
        if isinstance(content, list | dict):
            copy["content"] = _TracedList(content) if isinstance(content, list) else _TracedDict(content)
        return copy

    def _traced(self, value: Any, message: int | None, path: tuple[str | int, ...]) -> Any:
        if isinstance(value, str):
            leaf = Leaf(message, path, value)
            self.leaves.append(leaf)
            return Traced(value, (Run(len(value), leaf, 0, None, False),), self) if value else value
        if isinstance(value, dict):
            is_arguments = "arguments" in path
            return {
                self._traced(key, message, (*path, key)) if is_arguments else key: self._traced(
                    item, message, (*path, key)
                )
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self._traced(item, message, (*path, number)) for number, item in enumerate(value)]
        return value


def _own_leaves(value: Mapping[str, Any]) -> Iterator[Leaf]:
    return leaves_of([item for item in value.values() if type(item) is Traced])
