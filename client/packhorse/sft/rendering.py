"""`render_chat`: a conversation as text, with the model's turns, its characters' origins, and what is not in it.

Owns the order in which these are found; leaves finding each to `sft.fitting` (the text), `sft.turns` and `sft.unused`.
`sft.chat` imports this module with its first template, because it needs jinja2.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from packhorse.sft.explained import Origin
from packhorse.sft.fitting import fit
from packhorse.sft.messages import Conversation
from packhorse.sft.template import ChatTemplate, TracedText
from packhorse.sft.tokenizer import Marks
from packhorse.sft.tracing.provenance import Dump, Leaf, Run, leaves_of, placed
from packhorse.sft.turns import Turn, find_turns
from packhorse.sft.unused import unused_fields


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A rendered conversation: its text, what was found in it, and what rendered it."""

    text: str
    """The text that the template made."""
    turns: tuple[Turn, ...]
    """The model's turns, ascending and disjoint."""
    unused: Mapping[str, int]
    """Fields that are missing from the text, at least in part → number of their values that are."""
    conversation: Conversation
    """The conversation, in the form in which the template read it."""
    runs: Sequence[Run]
    """Origins of the text's characters, in order."""
    template: ChatTemplate
    """The template that made the text."""
    variables: Mapping[str, Any]
    """What the template was given besides the conversation."""
    marks: Marks
    """Texts of the tokenizer's added tokens, some of which may end a turn."""
    turn_end: str
    """What may end a turn of the model; see `TurnEnd` in `sft.chat`."""

    @property
    def ends_with_turn(self) -> bool:
        """Whether nothing but white space follows the last turn."""
        return bool(self.turns) and not self.text[self.turns[-1].end :].strip()

    def own_texts(self) -> Iterator[str]:
        """Yields the parts of the text that come from the row, not from the template."""
        for begin, run in placed(self.runs):
            if run.source is not None:
                yield self.text[begin : begin + run.length]

    def again(self, conversation: Conversation) -> "RenderedChat":
        """Renders another conversation in the same way."""
        return render_chat(self.template, conversation, self.variables, self.marks, self.turn_end)

    def origins(self) -> list[Origin]:
        """Returns the origins of the text's characters, in order, for people."""
        found: list[Origin] = []
        for begin, run in placed(self.runs):
            leaf = _first_leaf(run)
            message, field = run.writer, None
            if leaf is not None:
                message = leaf.message if message is None else message
                field = _path(leaf, is_dump=isinstance(run.source, Dump))
            found.append(Origin(begin + run.length, message, field))
        return found


def render_chat(
    template: ChatTemplate, chat: Conversation, variables: Mapping[str, Any], marks: Marks, turn_end: str
) -> RenderedChat:
    """Renders a conversation and finds the model's turns in it.

    Raises:
        TemplateRefusal: the template does not render the conversation.
        ValueError: the text does not show where a turn is, or a field cannot have the form that the template needs.
    """
    chat, traced, shown = fit(template, chat, variables)
    turns = find_turns(template, chat, variables, traced, marks)
    if turn_end == "next":
        turns = tuple(_with_next_mark(turn, traced, marks) for turn in turns)
    return RenderedChat(
        text=traced.text,
        turns=turns,
        unused=unused_fields(chat, traced, shown),
        conversation=chat,
        runs=traced.runs,
        template=template,
        variables=variables,
        marks=marks,
        turn_end=turn_end,
    )


def _with_next_mark(turn: Turn, traced: TracedText, marks: Marks) -> Turn:
    """Returns a turn; if no special token ends it, with the special token that follows it, if one does."""
    if not turn.is_open or not marks.special:
        return turn
    found = re.compile(rf"\s*({'|'.join(map(re.escape, marks.special))})").match(traced.text, turn.end)
    return replace(turn, end=found.end(), is_open=False) if found else turn


def _first_leaf(run: Run) -> Leaf | None:
    """Returns the leaf that a run comes from, or the first leaf of a value written as JSON; None if there is none."""
    if isinstance(run.source, Dump):
        return next(leaves_of(run.source.value), None)
    return run.source


def _path(leaf: Leaf, *, is_dump: bool) -> str:
    """Returns a leaf's path, such as `messages[1].tool_calls[0].function.name`.

    For a leaf of a value that was written as JSON (`is_dump`), it is the path of the arguments, or of the tool.
    """
    keys = list(leaf.path)
    if is_dump and "arguments" in keys:
        keys = keys[: keys.index("arguments") + 1]
    elif is_dump and leaf.message is None:
        keys = keys[:2]  # `tools`, and the number of the tool
    steps = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    return steps.lstrip(".") if leaf.message is None else f"messages[{leaf.message}]{steps}"
