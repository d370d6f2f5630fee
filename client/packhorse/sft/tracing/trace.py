"""`Trace`: the record of one rendering of a chat template.

Owns the row's copy with traced texts, and which message's iteration is running. Leaves the texts that remember their
origin to `sft.tracing.provenance`, and the places of a template that call the record to `sft.tracing.environment`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from packhorse.sft.messages import REASONING
from packhorse.sft.tracing.provenance import Leaf, Run, Traced, leaves_of, written


class _TracedList(list[Any]):
    """A content in parts. If a template takes it for a text, the text is traced as written by Python."""

    def __str__(self) -> str:
        return cast(str, written(self))


class _TracedDict(dict[str, Any]):
    """A content that is an object. If a template takes it for a text, the text is traced as written by Python."""

    def __str__(self) -> str:
        return cast(str, written(self))


class Trace:
    """The record of one rendering: the row's leaves, and which message's iteration is running.

    The template calls it from the places that `sft.tracing.environment` put into its tree. An iteration is one pass of
    a loop, or one call of a macro. It is about a message if that message, or part of it, is among the iteration's
    variables.
    """

    __slots__ = ("_number_of", "_own", "_stack", "is_crossed", "leaves", "messages", "tools", "writer")

    def __init__(self, messages: Sequence[Mapping[str, Any]], own: Iterable[int], tools: Any = None) -> None:
        """Copies a row with traced texts, to `messages` and `tools`; `own` are the messages that the model wrote."""
        self.leaves: list[Leaf] = []
        """The texts of the row, in order."""
        self.messages = [self._message(number, message) for number, message in enumerate(messages)]
        self.tools = self._traced(tools, None, ("tools",)) if tools is not None else None
        self.writer: int | None = None
        """Number of the message whose iteration is running; None if none is."""
        self.is_crossed = False
        """Whether one iteration wrote text that was made by the iteration of another message, which is the model's."""
        self._own = frozenset(own)
        self._number_of = {id(message): number for number, message in enumerate(self.messages)}
        self._stack: list[int | None] = []  # of each loop or macro that is running, outermost first: its message

    def enter(self) -> None:
        """Notes that a loop or a macro begins."""
        self._stack.append(None)

    def leave(self) -> None:
        """Notes that the innermost loop or macro ends."""
        self._stack.pop()
        self._set_writer()

    def begin(self, values: Sequence[Any]) -> None:
        """Notes that an iteration begins; `values` are its variables, and lists from which it takes items by number."""
        self._stack[-1] = self._message_of(values)
        self._set_writer()

    def write(self, piece: str, runs: list[Run]) -> None:
        """Adds the runs of a piece that the template writes, and notes whether iterations cross."""
        self.collect(piece, runs, self._cross)

    def gathered(self, value: str | list[Any]) -> Any:
        """Returns a text, or list of texts, marked as made by the running iteration; another may write it later."""
        if self.writer is None:
            return value
        if isinstance(value, list):
            return [self.gathered(item) if type(item) is str else item for item in value]
        runs: list[Run] = []
        self.collect(value, runs)
        return Traced(value, tuple(runs), self)

    def collect(self, piece: str, runs: list[Run], on_foreign: Callable[[Run], object] | None = None) -> None:
        """Adds the runs of a text to those of a longer text; characters without a writer get the running one.

        `on_foreign` is called with each run that another message's iteration wrote.
        """
        writer = self.writer
        if type(piece) is not Traced or not piece._runs:
            if piece:
                runs.append(Run(len(piece), None, writer=writer))
            return
        for run in piece._runs:
            if writer is not None and run.writer != writer:
                if run.writer is None:
                    run = Run(run.length, run.source, run.at, writer, run.is_generated)
                elif on_foreign is not None:
                    on_foreign(run)
            runs.append(run)

    def _cross(self, run: Run) -> None:
        """Notes that the running iteration writes text of another one, if that one's message is the model's."""
        if run.writer in self._own:
            self.is_crossed = True

    def _set_writer(self) -> None:
        """Sets the writer to the message of the innermost iteration that is about one.

        But a message of somebody else's always wins over one of the model's, whichever is nested in the other, so that
        its text is never trained on.
        """
        found: int | None = None
        for number in self._stack:
            if number is None:
                continue
            if found is None or found in self._own or number not in self._own:
                found = number
        self.writer = found

    def _message_of(self, values: Sequence[Any]) -> int | None:
        """Returns the message that an iteration is about; None if its values do not show one.

        It is the message among the values. If a template copied it, it is the only message whose texts are in a mapping
        among them.
        """
        indexes = [value for value in values if type(value) is int]  # no bool
        lists = [value for value in values if isinstance(value, list)]
        items = [value[at] for value in lists for at in indexes if -len(value) <= at < len(value)]
        for value in (*values, *items):
            number = self._number_of.get(id(value))
            if number is not None:
                return number
        mappings = [value for value in (*values, *items) if isinstance(value, dict)]
        copied = {leaf.message for mapping in mappings for leaf in _own_leaves(mapping)}
        return copied.pop() if len(copied) == 1 else None

    def _message(self, number: int, message: Mapping[str, Any]) -> dict[str, Any]:
        """Copies a message with traced texts; the same reasoning under several names is one leaf."""
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
        """Copies a value with its texts as leaves; keys are leaves too if they are within a call's arguments."""
        if isinstance(value, str):
            leaf = Leaf(message, path, value)
            self.leaves.append(leaf)
            return Traced(value, (Run(len(value), leaf, 0),), self) if value else value
        if isinstance(value, dict):
            is_arguments = "arguments" in path
            copy = {}
            for key, item in value.items():
                traced_key = self._traced(key, message, (*path, key)) if is_arguments else key
                copy[traced_key] = self._traced(item, message, (*path, key))
            return copy
        if isinstance(value, list):
            return [self._traced(item, message, (*path, number)) for number, item in enumerate(value)]
        return value


def _own_leaves(value: Mapping[str, Any]) -> Iterator[Leaf]:
    """Yields the leaves of the texts that a mapping holds directly."""
    return leaves_of([item for item in value.values() if type(item) is Traced])
