"""What a rendered chat does not show of its row.

Owns telling which texts of a row are not in its tokens, and what each is called. Leaves origins to `sft.provenance`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from packhorse.sft.messages import Conversation
from packhorse.sft.provenance import Dump, Leaf, leaves_of
from packhorse.sft.template import ChatTemplate, TemplateRefusal, TracedText

_WIRING = ("id", "type", "tool_call_id", "index", "call_id")
"""Keys that connect parts of a row, and say nothing to a model."""
_SCHEMA = ("type", "required", "enum")


def shown_of(traced: TracedText) -> "Shown":
    """Returns which leaves of a row came out in its text; found once."""
    if traced.trace.shown is None or traced.trace.shown[0] is not traced:
        traced.trace.shown = (traced, Shown(traced))
    shown: Shown = traced.trace.shown[1]
    return shown


class Shown:
    """Which leaves of a row came out in its text."""

    def __init__(self, traced: TracedText) -> None:
        self._whole: set[int] = set()
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        self.as_python: set[int] = set()
        """Leaves, by their identity, in values written as Python does."""
        self.has_text_as_json = False
        """Whether arguments that are JSON text were encoded once more."""
        for run in traced.runs:
            source = run.source
            if isinstance(source, Leaf) and run.at >= 0:
                self._ranges.setdefault(id(source), []).append((run.at, run.at + run.length))
            elif source is not None:
                for leaf in leaves_of(source.value) if isinstance(source, Dump) else (source,):
                    self._whole.add(id(leaf))
                    if isinstance(source, Dump):
                        self.as_python |= {id(leaf)} if source.is_python else set()
                        self.has_text_as_json |= leaf.path[-1] == "arguments" and leaf.message is not None
        # An operation that is not followed gives plain text.
        self._words = "\0".join(traced.text[begin : begin + length] for begin, length in _plain(traced) if length > 1)

    def has(self, leaf: Leaf) -> bool:
        """Whether some of a text came out, or nothing is in it."""
        words = leaf.text.strip()
        if not words or id(leaf) in self._whole or id(leaf) in self._ranges:
            return True
        return len(words) > 1 and words in self._words

    def missing(self, leaf: Leaf) -> str:
        """Returns what did not come out of a text of which some did."""
        if id(leaf) in self._whole or id(leaf) not in self._ranges:
            return ""
        rest: list[str] = []
        at = 0
        for begin, end in sorted(self._ranges[id(leaf)]):
            rest.append(leaf.text[at:begin])
            at = max(at, end)
        return "".join([*rest, leaf.text[at:]]).strip()


def unused_fields(
    template: ChatTemplate, chat: Conversation, variables: Mapping[str, Any], traced: TracedText
) -> dict[str, int]:
    """Returns the fields of a row of which something is not in its text → how many values of each.

    Names are `messages.content`, `messages.tool_calls.arguments`, `tools`; "…, in part" if some of a text came out.
    """
    shown = shown_of(traced)
    silent = _silent_messages(chat, traced, shown)
    found: dict[str, int] = {}
    tools_shown = False
    for leaf in traced.trace.leaves:
        if leaf.message is None:
            tools_shown |= bool(leaf.text.strip()) and shown.has(leaf)
    for number in sorted(silent):
        _count(found, f"messages of role {chat.messages[number]['role']}")
    for leaf in _distinct(traced.trace.leaves):
        if leaf.message is None:
            if leaf.path[-1] not in _SCHEMA and not isinstance(leaf.path[-1], int) and not shown.has(leaf):
                _count(found, _name(leaf) if tools_shown else "tools")
        elif leaf.message in silent or leaf.path[-1] in _WIRING or leaf.path == ("role",):
            continue
        elif not shown.has(leaf):
            _count(found, _name(leaf))
        elif shown.missing(leaf):
            _count(found, f"{_name(leaf)}, in part")
    if "tools" in found:
        found["tools"] = 1
    for name, messages in _without_values(chat.messages):
        try:
            is_same = template.render(messages, variables) == traced.text
        except TemplateRefusal:
            continue
        if is_same:
            _count(found, name)
    return found


def _silent_messages(chat: Conversation, traced: TracedText, shown: Shown) -> set[int]:
    """Messages of which nothing came out, though they hold a text."""
    wrote = {run.writer for run in traced.runs if run.length}
    texts: dict[int, list[Leaf]] = {}
    for leaf in traced.trace.leaves:
        if leaf.message is not None and leaf.path != ("role",) and leaf.text.strip() and leaf.path[-1] not in _WIRING:
            texts.setdefault(leaf.message, []).append(leaf)
    return {
        number
        for number, leaves in texts.items()
        if number not in wrote and not any(shown.has(leaf) for leaf in leaves)
    }


def _without_values(messages: Sequence[Mapping[str, Any]]) -> Iterable[tuple[str, list[Any]]]:
    """Yields (field, messages without one of its values), for values of which no text can come out."""
    for number, message in enumerate(messages):
        for key, value in message.items():
            if isinstance(value, int | float):
                rest = {name: other for name, other in message.items() if name != key}
                yield f"messages.{key}", [*messages[:number], rest, *messages[number + 1 :]]
        parts = message.get("content")
        parts = parts if isinstance(parts, list) else []
        for at, part in enumerate(parts):
            if not any(isinstance(part.get(name), str) for name in part if name not in _WIRING):
                rest = {**message, "content": [other for place, other in enumerate(parts) if place != at]}
                yield f"parts of type {part.get('type')}", [*messages[:number], rest, *messages[number + 1 :]]


def _distinct(leaves: Iterable[Leaf]) -> Iterable[Leaf]:
    return {id(leaf): leaf for leaf in leaves}.values()


def _name(leaf: Leaf) -> str:
    """What a leaf's field is called: its keys, without numbers; what is below arguments is the arguments."""
    keys = [key for key in leaf.path if isinstance(key, str)]
    if leaf.message is None:
        return ".".join(keys[:3])
    if "arguments" in keys:
        return "messages.tool_calls.arguments"
    if keys[0] == "content" and len(keys) > 1 and keys[1] != "text":
        return f"messages.content.{keys[1]}"
    return ".".join(["messages", *(key for key in keys if key not in ("function", "text"))])


def _count(found: dict[str, int], name: str) -> None:
    found[name] = found.get(name, 0) + 1


def _plain(traced: TracedText) -> Iterable[tuple[int, int]]:
    begin = 0
    for run in traced.runs:
        if run.source is None:
            yield begin, run.length
        begin += run.length
