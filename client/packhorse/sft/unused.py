"""`Shown` and `unused_fields`: which texts of a row came out in its rendered text, and which fields are missing.

Owns finding the texts of a row that did not come out, and naming their fields. Leaves the origins of characters to
`sft.tracing.provenance`. A leaf is one text in a row, such as a content or a function's name; see `Leaf` there.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from packhorse.sft.forms.plain_data import WORDS_MARK
from packhorse.sft.messages import REASONING, Conversation
from packhorse.sft.template import ChatTemplate, TemplateRefusal, TracedText
from packhorse.sft.tracing.provenance import Leaf

_WIRING = ("id", "type", "tool_call_id", "index", "call_id")
"""Keys of a message, call or part that connect parts of a row, and say nothing to a model."""
_SCHEMA = ("type", "required", "enum")
"""Keys of a tool's JSON schema that templates often leave out, so they are not reported."""


class Shown:
    """Which leaves of a row came out in its text. Leaves are identified by their `id()`."""

    def __init__(
        self, template: ChatTemplate, chat: Conversation, variables: Mapping[str, Any], traced: TracedText
    ) -> None:
        self._template, self._chat, self._variables, self._traced = template, chat, variables, traced
        self._whole: set[int] = set()  # leaves that came out, at unknown positions
        self._ranges: dict[int, list[tuple[int, int]]] = {}  # leaf → [begin, end) of its characters that came out
        self.as_python: set[int] = set()
        """Leaves in values that were written as Python writes them, not as JSON."""
        self.has_text_as_json = False
        """Whether arguments that are JSON text were encoded once more."""
        for run in traced.runs:
            source = run.source
            if isinstance(source, Leaf) and run.at >= 0:
                self._ranges.setdefault(id(source), []).append((run.at, run.at + run.length))
            elif isinstance(source, Leaf):
                self._whole.add(id(source))
            elif source is not None:
                for leaf in source.leaves():
                    self._whole.add(id(leaf))
                    if source.is_python:
                        self.as_python.add(id(leaf))
                    self.has_text_as_json |= leaf.path[-1] == "arguments" and leaf.message is not None

    def has(self, leaf: Leaf) -> bool:
        """Returns whether some of a leaf's text came out, or the text depends on it, or it is empty."""
        if not leaf.text.strip() or id(leaf) in self._whole or id(leaf) in self._ranges:
            return True
        return id(leaf) in self._read

    def changes(self, messages: Sequence[Mapping[str, Any]], tools: Any = None) -> bool:
        """Returns whether other messages, or tools, would give another text; True if the template refuses them."""
        variables = self._variables if tools is None else {**self._variables, "tools": tools}
        try:
            return self._template.render(messages, variables) != self._traced.text
        except TemplateRefusal:
            return True

    @cached_property
    def _read(self) -> set[int]:
        """Leaves on which the text depends without showing them, e.g. through an operation that is not followed.

        All unseen leaves are changed at once first: usually the text stays the same, and one rendering is enough.
        """
        there = self._whole | self._ranges.keys()
        unseen = [leaf for leaf in _distinct(self._traced.trace.leaves) if leaf.text.strip() and not _is_wiring(leaf)]
        unseen = [leaf for leaf in unseen if id(leaf) not in there]
        if not unseen or not self._depends_on(unseen):
            return set()
        return {id(leaf) for leaf in unseen if len(unseen) == 1 or self._depends_on([leaf])}

    def _depends_on(self, leaves: Sequence[Leaf]) -> bool:
        """Returns whether the text changes if these leaves get another text."""
        messages, tools = self._chat.messages, self._variables.get("tools")
        texts = {(leaf.message, *leaf.path): leaf.text for leaf in leaves}
        marked = [_marked(message, (number,), texts) for number, message in enumerate(messages)]
        for message, other in zip(messages, marked, strict=True):
            for name in REASONING:  # reasoning under several names is one leaf, so all its names change together
                if other.get(name) is not message.get(name):
                    twins = [twin for twin in REASONING if message.get(twin) is message[name]]
                    other.update(dict.fromkeys(twins, other[name]))
        return self.changes(marked, None if tools is None else _marked(tools, (None, "tools"), texts))

    def missing(self, leaf: Leaf) -> str:
        """Returns the rest of a leaf's text, if only some of it came out; otherwise an empty text."""
        if id(leaf) in self._whole or id(leaf) not in self._ranges:
            return ""
        rest: list[str] = []
        at = 0
        for begin, end in sorted(self._ranges[id(leaf)]):
            rest.append(leaf.text[at:begin])
            at = max(at, end)
        return "".join([*rest, leaf.text[at:]]).strip()


def unused_fields(chat: Conversation, traced: TracedText, shown: Shown) -> dict[str, int]:
    """Returns the fields that are missing from a row's text → number of their values that are missing.

    Names are such as `messages.content`, `messages.tool_calls.arguments` or `tools`, with ", in part" if some of a
    text came out.
    """
    silent = _silent_messages(chat, traced, shown)
    found: dict[str, int] = {}
    of_tools = [leaf for leaf in traced.trace.leaves if leaf.message is None and leaf.text.strip()]
    shows_tools = any(shown.has(leaf) for leaf in of_tools)
    for number in sorted(silent):
        _count(found, f"messages of role {chat.messages[number]['role']}")
    for leaf in _distinct(traced.trace.leaves):
        if leaf.message is None:
            # A path that ends with a number is an item of a list in a schema, such as a value of `enum`.
            if leaf.path[-1] not in _SCHEMA and not isinstance(leaf.path[-1], int) and not shown.has(leaf):
                _count(found, _name(leaf) if shows_tools else "tools")
        elif leaf.message in silent or _is_wiring(leaf):
            continue
        elif not shown.has(leaf):
            _count(found, _name(leaf))
        elif shown.missing(leaf):
            _count(found, f"{_name(leaf)}, in part")
    if "tools" in found:
        found["tools"] = 1  # one value of the row, however many texts it holds
    for name, messages in _without_values(chat.messages):
        if not shown.changes(messages):
            _count(found, name)
    return found


def _silent_messages(chat: Conversation, traced: TracedText, shown: Shown) -> set[int]:
    """Returns the numbers of the messages that hold a text of which nothing came out."""
    wrote = {run.writer for run in traced.runs if run.length}
    texts: dict[int, list[Leaf]] = {}
    for leaf in traced.trace.leaves:
        if leaf.message is not None and leaf.text.strip() and not _is_wiring(leaf):
            texts.setdefault(leaf.message, []).append(leaf)
    return {
        number
        for number, leaves in texts.items()
        if number not in wrote and not any(shown.has(leaf) for leaf in leaves)
    }


def _without_values(messages: Sequence[Mapping[str, Any]]) -> Iterable[tuple[str, list[Any]]]:
    """Yields (field, messages without one value of it) for every value that holds no text, such as a number.

    Such a value has no leaf to follow. If the text is the same without it, the template does not use it.
    """
    for number, message in enumerate(messages):
        for key, value in message.items():
            if key not in ("role", "content", "tool_calls") and not has_text(value) and value not in (None, "", [], {}):
                rest = {name: other for name, other in message.items() if name != key}
                yield f"messages.{key}", [*messages[:number], rest, *messages[number + 1 :]]
        content = message.get("content")
        parts = content if isinstance(content, list) else []
        for at, part in enumerate(parts):
            if not any(isinstance(part.get(name), str) for name in part if name not in _WIRING):
                rest = {**message, "content": [other for place, other in enumerate(parts) if place != at]}
                yield f"parts of type {part.get('type')}", [*messages[:number], rest, *messages[number + 1 :]]


def has_text(value: Any) -> bool:
    """Returns whether a value is a text or holds one; keys do not count.

    Example:
        >>> has_text({"city": ["Paris"]}), has_text({"degrees": 21})
        (True, False)
    """
    if isinstance(value, Mapping):
        return any(map(has_text, value.values()))
    return any(map(has_text, value)) if isinstance(value, list) else isinstance(value, str)


def _is_wiring(leaf: Leaf) -> bool:
    """Returns whether a leaf only connects parts of a row, or says who speaks."""
    if leaf.message is None:
        return False
    if leaf.path == ("role",):
        return True
    if "arguments" in leaf.path:
        return False
    is_near = len(leaf.path) == 1 or leaf.path[0] in ("tool_calls", "content")
    return leaf.path[-1] == "type" or (leaf.path[-1] in _WIRING and is_near)


def _marked(value: Any, path: tuple[Any, ...], texts: Mapping[tuple[Any, ...], str]) -> Any:
    """Returns a copy of a value, at `path` in its row, in which some texts have a mark at their end.

    `texts` are the texts to mark, by path. If such a text is its path's last key, the key gets the mark.
    """
    if isinstance(value, dict):
        copy = {}
        for key, item in value.items():
            is_marked = texts.get((*path, key)) == key and item != key
            copy[key + WORDS_MARK if is_marked else key] = _marked(item, (*path, key), texts)
        return copy
    if isinstance(value, list):
        return [_marked(item, (*path, number), texts) for number, item in enumerate(value)]
    return value + WORDS_MARK if isinstance(value, str) and texts.get(path) == value else value


def _distinct(leaves: Iterable[Leaf]) -> Iterable[Leaf]:
    """Returns leaves without repetitions of the same object."""
    return {id(leaf): leaf for leaf in leaves}.values()


def _name(leaf: Leaf) -> str:
    """Returns the name of a leaf's field: its keys, without numbers and without what is below `arguments`."""
    keys = [key for key in leaf.path if isinstance(key, str)]
    if leaf.message is None:
        return ".".join(keys[:3])  # such as `tools.function.parameters`
    if "arguments" in keys:
        return "messages.tool_calls.arguments"
    if keys[0] == "content" and len(keys) > 1 and keys[1] != "text":
        return f"messages.content.{keys[1]}"
    return ".".join(["messages", *(key for key in keys if key not in ("function", "text"))])


def _count(found: dict[str, int], name: str) -> None:
    """Counts one more missing value of a field."""
    found[name] = found.get(name, 0) + 1
