"""A conversation as text, with the model's turns, where its characters come from, and what is not in it.

Owns the order in which these are found; leaves each to `sft.fitting`, `sft.turns` and `sft.unused`. Jinja is imported
with the first template only.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from packhorse.sft.explained import Origin
from packhorse.sft.fitting import fit
from packhorse.sft.messages import Conversation
from packhorse.sft.provenance import Dump, Leaf, Run, leaves_of
from packhorse.sft.template import ChatTemplate, TracedText
from packhorse.sft.tokenizer import Marks
from packhorse.sft.turns import Turn, find_turns
from packhorse.sft.unused import unused_fields


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """The text of a conversation."""

    text: str
    """What the template made of the conversation."""
    turns: tuple[Turn, ...]
    """The model's turns, ascending and disjoint."""
    unused: Mapping[str, int]
    """Fields of which something is not in the text → how many values of each."""
    conversation: Conversation
    """In the form in which the template reads it."""
    runs: Sequence[Run]
    """Where its characters come from."""
    template: ChatTemplate
    """The template that made it."""
    variables: Mapping[str, Any]
    """What the template was given besides the conversation."""
    marks: Marks
    """Texts of the tokenizer that may end a turn."""
    turn_end: str
    """What ends a turn of the model: "template", or "next", the mark with which the next message begins."""

    @property
    def ends_with_turn(self) -> bool:
        """Whether nothing but white space follows the last turn."""
        return bool(self.turns) and not self.text[self.turns[-1].end :].strip()

    def own_texts(self) -> Iterator[str]:
        """Yields the parts of the text that come from the row, not from the template."""
        end = 0
        for run in self.runs:
            end += run.length
            if run.source is not None:
                yield self.text[end - run.length : end]

    def again(self, conversation: Conversation) -> "RenderedChat":
        """Renders another conversation in the same way."""
        return render_chat(self.template, conversation, self.variables, self.marks, self.turn_end)

    def origins(self) -> list[Origin]:
        """Returns the origins of its characters, in order."""
        found: list[Origin] = []
        end = 0
        for run in self.runs:
            end += run.length
            leaf = _leaf(run)
            message = run.writer if run.writer is not None or leaf is None else leaf.message
            found.append(Origin(end, message, None if leaf is None else _path(leaf, isinstance(run.source, Dump))))
        return found


def render_chat(
    template: ChatTemplate, chat: Conversation, variables: Mapping[str, Any], marks: Marks, turn_end: str
) -> RenderedChat:
    """Renders a conversation and finds the model's turns in it.

    Raises:
        TemplateRefusal: the template does not render the conversation.
        ValueError: it does not show where a turn is, or a form of its fields is not possible.
    """
    chat, traced = fit(template, chat, variables)
    turns = find_turns(template, chat, variables, traced, marks)
    if turn_end == "next":
        turns = tuple(_with_next_mark(turn, traced, marks) for turn in turns)
    return RenderedChat(
        text=traced.text,
        turns=turns,
        unused=unused_fields(template, chat, variables, traced),
        conversation=chat,
        runs=traced.runs,
        template=template,
        variables=variables,
        marks=marks,
        turn_end=turn_end,
    )


def _with_next_mark(turn: Turn, traced: TracedText, marks: Marks) -> Turn:
    """A turn without an end takes the special token that follows it."""
    if not turn.is_open or not marks.special:
        return turn
    found = re.compile(rf"\s*({'|'.join(map(re.escape, marks.special))})").match(traced.text, turn.end)
    return replace(turn, end=found.end(), is_open=False) if found else turn


def _leaf(run: Run) -> Leaf | None:
    """Returns where a stretch of text comes from; the first value of what was written as JSON."""
    if isinstance(run.source, Dump):
        return next(leaves_of(run.source.value), None)
    return run.source


def _path(leaf: Leaf, is_dump: bool) -> str:
    """A leaf's path, as `messages[1].tool_calls[0].function.name`; the value's path if it was written as JSON."""
    keys = list(leaf.path)
    if is_dump and "arguments" in keys:
        keys = keys[: keys.index("arguments") + 1]
    elif is_dump and leaf.message is None:
        keys = keys[:2]
    steps = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    return steps.lstrip(".") if leaf.message is None else f"messages[{leaf.message}]{steps}"
