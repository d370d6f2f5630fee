"""`find_turns`: where the model's own turns are in the text of a conversation.

Owns finding them; leaves rendering to `sft.template`, origins to `sft.tracing.provenance` and tokens to `sft.chat`. A
template shows its turns in one of three ways. Each finds the right range or none:

1. `{% generation %}` blocks mark the turns exactly.
2. The trace says which characters were written by the iteration of the template's loop over messages that is about a
   message. The turn is these without the header, which is what the generation prompt writes after the messages before.
   A header holds no word of the message, and it does not end within a mark or a word. If the prompt writes none, it is
   what a turn with any other content would begin with.
3. If there is no such loop, the turn is what a message adds to the rendering of the messages before it, with their
   generation prompt. Both renderings must be prefixes of the text, and every word in the range must be the message's.

A turn includes its end-of-turn token. It includes neither its header nor the white space before the next turn.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from packhorse.sft.forms.plain_data import WORDS_MARK
from packhorse.sft.messages import Conversation, with_other_words
from packhorse.sft.template import ChatTemplate, TemplateRefusal, TracedText
from packhorse.sft.tokenizer import Marks
from packhorse.sft.tracing.provenance import Dump, Leaf, Run, placed

_WAY_OUT = "mark the model's text, end-of-turn token included, in the template: {% generation %} … {% endgeneration %}"


@dataclass(frozen=True, slots=True)
class Turn:
    """A range of text that the model writes."""

    begin: int
    """The first character."""
    end: int
    """The character after the last."""
    message: int
    """Number of the message that it belongs to; -1 if that is not known."""
    is_trained: bool
    """Whether it is to be trained on."""
    is_open: bool = False
    """Whether it does not end with a special token that the template wrote."""


@dataclass(slots=True)
class _Block:
    """Adjacent characters of one message, while they are collected."""

    begin: int
    """The first character."""
    end: int
    """The character after the last."""
    message: int | None
    """Number of the message; None as long as it is not known."""


def find_turns(
    template: ChatTemplate, chat: Conversation, variables: Mapping[str, Any], traced: TracedText, marks: Marks
) -> tuple[Turn, ...]:
    """Returns the model's turns in a rendered conversation, ascending and disjoint.

    Raises:
        ValueError: the template does not show where a turn is.
    """
    search = _Search(template, chat, variables, traced, marks)
    if template.has_generation:
        return tuple(search.marked())
    return tuple(search.written() if search.is_traced() else search.added())


class _Search:
    """The search for the turns of one conversation."""

    def __init__(
        self, template: ChatTemplate, chat: Conversation, variables: Mapping[str, Any], traced: TracedText, marks: Marks
    ) -> None:
        self._template = template
        self._chat = chat
        self._variables = variables
        self._text = traced.text
        self._traced = traced
        self._marks = marks
        self._placed = list(placed(traced.runs))
        """(begin in the text, run) for every run of the text."""
        self._begins = [begin for begin, _ in self._placed]
        """Where every run begins, to find the run of a character by bisection."""
        self._is_followed = any(run.writer is not None for run in traced.runs)
        """Whether the template's loop has an iteration about a message."""

    def marked(self) -> Iterator[Turn]:
        """Yields the template's generation blocks."""
        trains_all = len(self._chat.trained) == len(self._chat.own)  # then it does not matter whose a block is
        for block in self._generated_blocks():
            if block.message is None and not trains_all:
                raise ValueError(
                    "the template's {% generation %} blocks cannot be assigned to messages, and only some turns are to "
                    "be trained on; train on all turns, or leave marked messages out"
                )
            number = -1 if block.message is None else block.message
            yield self._turn(block.begin, block.end, number, trains_all or number in self._chat.trained)

    def _generated_blocks(self) -> list[_Block]:
        """Returns what stands in generation blocks; adjacent blocks of one message are joined."""
        blocks: list[_Block] = []
        for begin, run in self._placed:
            if not run.is_generated:
                continue
            end = begin + run.length
            owner = run.writer if run.writer is not None else _message_of(run)
            adjacent = blocks[-1] if blocks and blocks[-1].end == begin else None
            if adjacent is None or (None not in (owner, adjacent.message) and owner != adjacent.message):
                blocks.append(_Block(begin, end, owner))
                continue
            adjacent.end = end
            if adjacent.message is None:
                adjacent.message = owner
        return blocks

    def is_traced(self) -> bool:
        """Returns whether the iterations of the model's messages wrote these messages, each its own.

        An iteration of somebody else's message may repeat words of the model's, if the model's message has an iteration
        too.
        """
        if not self._is_followed or self._traced.trace.is_crossed:
            return False
        own = set(self._chat.own)
        writers: set[int] = set()  # messages of the model with an iteration that wrote something
        repeated: set[int] = set()  # messages of the model whose words the iteration of somebody else's message wrote
        for _, run in self._placed:
            owner = _message_of(run)
            if run.writer in own:
                assert run.writer is not None
                writers.add(run.writer)
                if owner not in (None, run.writer):
                    return False
            elif owner in own:
                if run.writer is None:
                    return False
                repeated.add(owner)
        return repeated <= writers

    def written(self) -> Iterator[Turn]:
        """Yields what the iterations of the model's messages wrote, without headers."""
        blocks = self._written_blocks()
        begun: set[int] = set()  # only the first block of a message has a header
        for block in blocks:
            number, begin, end = block.message, block.begin, block.end
            assert number is not None
            if number not in begun:
                begin += self._header_length(number, begin, end)
            begun.add(number)
            turn = self._turn(begin, self._without_glue(begin, end), number, number in self._chat.trained)
            # After the last message, a template may write the end of the turn behind its loop.
            if turn.is_open and number == len(self._chat.messages) - 1 and end == blocks[-1].end:
                turn = self._with_closing(turn, end)
            if turn.begin < turn.end:
                yield turn

    def _written_blocks(self) -> list[_Block]:
        """Returns what the iterations of the model's messages wrote; adjacent runs of a message are joined."""
        blocks: list[_Block] = []
        for begin, run in self._placed:
            if run.writer not in self._chat.own:
                continue
            assert run.writer is not None
            if blocks and blocks[-1].message == run.writer and blocks[-1].end == begin:
                blocks[-1].end += run.length
            else:
                blocks.append(_Block(begin, begin + run.length, run.writer))
        return blocks

    def added(self) -> Iterator[Turn]:
        """Yields what each message of the model adds to the conversation before it."""
        last_end = 0
        for number in self._chat.own:
            begin = self._prefix(number, add_generation_prompt=True)
            # The template may put a first message into another turn; then nothing is before it.
            if begin is None and (self._is_followed or number == 0):
                raise _unclear(number, "no iteration of the loop over the messages is about it")
            if begin is None or begin == self._prefix(number, add_generation_prompt=False):
                # There is no generation prompt, so the turn begins with the message's first word.
                begin = next((at for at, run in self._placed if _message_of(run) == number and run.length), None)
            end = self._prefix(number + 1, add_generation_prompt=False)
            if begin is None or end is None or not last_end <= begin <= end:
                raise _unclear(number, "no loop over the messages writes it, and the text up to it is no prefix")
            self._refuse_other_words(number, begin, end)
            last_end = self._without_glue(begin, end)
            yield self._turn(begin, last_end, number, number in self._chat.trained)

    def _refuse_other_words(self, number: int, begin: int, end: int) -> None:
        """Raises a ValueError unless [begin, end) has all words of a message, and none of another."""
        for at, run in self._placed:
            owner, run_end = _message_of(run), at + run.length
            if owner is None or not run.length:
                continue
            is_inside = begin <= at and run_end <= end
            is_outside = run_end <= begin or end <= at
            if not (is_inside if owner == number else is_outside):
                raise _unclear(number, f"words of message {owner} stand where another's are expected")

    def _turn(self, begin: int, end: int, message: int, is_trained: bool) -> Turn:
        """Returns a turn; finds out whether it is open."""
        text = self._text[begin:end].rstrip()
        is_closed = bool(self._marks.special) and text.endswith(self._marks.special)
        return Turn(begin, end, message, is_trained, not (is_closed and self._is_template(begin + len(text) - 1)))

    def _with_closing(self, turn: Turn, end: int) -> Turn:
        """Returns the last turn with what the template writes after its loop, to the end of the first special token.

        Without a special token there, the turn gets all of the rest. If the rest begins with text of the row, it gets
        nothing.
        """
        rest = self._text[end:]
        if not rest.strip() or not self._is_template(end):
            return turn
        mark = re.search("|".join(map(re.escape, self._marks.special)), rest) if self._marks.special else None
        closed_end = len(self._text) if mark is None else end + mark.end()
        return self._turn(turn.begin, closed_end, turn.message, turn.is_trained)

    def _is_template(self, at: int) -> bool:
        """Returns whether the character at a position is the template's own."""
        return self._traced.runs[bisect_right(self._begins, at) - 1].source is None

    def _header_length(self, number: int, begin: int, end: int) -> int:
        """Returns the length of a turn's header: as many of its first words as the generation prompt writes too.

        Only words before the message's own count. `begin` and `end` are what the message's iteration wrote.
        """
        own_runs = islice(self._placed, bisect_left(self._begins, begin), bisect_left(self._begins, end))
        first_word = next((at for at, run in own_runs if run.source is not None and not _is_role(run)), end)
        opening = self._text[begin:first_word]
        prompt = self._prompt(number, begin)
        length = len(prompt) if opening.startswith(prompt) else self._common_length(opening, prompt)
        if length or not opening:
            return length
        # The generation prompt writes no header. Then it is what a turn with any other content would begin with.
        message = with_other_words(self._chat.messages[number], WORDS_MARK)
        other = self._rendered([*self._chat.messages[:number], message, *self._chat.messages[number + 1 :]])
        if other is None or not other.startswith(self._text[:begin]):
            return 0
        length = self._common_length(opening, other[begin:].partition(WORDS_MARK)[0])
        return length if opening[:length].strip() else 0

    def _prompt(self, number: int, begin: int) -> str:
        """Returns the generation prompt after the messages before a message; "" if it cannot be found."""
        before = self._chat.messages[:number]
        prompted = self._rendered(before, add_generation_prompt=True)
        if prompted is None:  # e.g. because there is no message before: take the prompt after any question
            before = [{"role": "user", "content": WORDS_MARK}]
            prompted = self._rendered(before, add_generation_prompt=True)
        elif prompted.startswith(self._text[:begin]):
            return prompted[begin:]
        plain = self._rendered(before)
        if prompted is not None and plain is not None and prompted.startswith(plain):
            return prompted[len(plain) :]
        return ""

    def _common_length(self, one: str, other: str) -> int:
        """Returns the length of the common beginning of two texts, in whole units: marks, words, other characters."""
        pattern = _units(self._marks.added)
        length = 0
        for unit, other_unit in zip(pattern.findall(one), pattern.findall(other), strict=False):  # to the shorter's end
            if unit != other_unit:
                break
            length += len(unit)
        return length

    def _prefix(self, num_messages: int, *, add_generation_prompt: bool) -> int | None:
        """Returns the length of the first messages, rendered; None if the text does not begin with that."""
        if num_messages == len(self._chat.messages):
            return len(self._text)
        prefix = self._rendered(self._chat.messages[:num_messages], add_generation_prompt=add_generation_prompt)
        return len(prefix) if prefix is not None and self._text.startswith(prefix) else None

    def _rendered(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = False) -> str | None:
        """Returns the text of other messages; None if the template does not render them."""
        try:
            return self._template.render(messages, self._variables, add_generation_prompt=add_generation_prompt)
        except TemplateRefusal:
            return None

    def _without_glue(self, begin: int, end: int) -> int:
        """Returns the end of a turn without the white space that may follow its last added token."""
        closed = self._text[begin:end].rstrip()
        return begin + len(closed) if self._marks.added and closed.endswith(self._marks.added) else end


@lru_cache(maxsize=16)
def _units(marks: tuple[str, ...]) -> re.Pattern[str]:
    """Returns the pattern of a unit of text: an added token, something like `<mark>`, a word, or a character."""
    return re.compile("|".join([*map(re.escape, marks), r"<[^<>\s]{1,60}>", r"\w+", r"."]), re.DOTALL)


def _message_of(run: Run) -> int | None:
    """Returns the message from which a run's words come; None for the template's own words, and for a role's name."""
    if isinstance(run.source, Dump):
        return next((leaf.message for leaf in run.source.leaves() if leaf.message is not None), None)
    return None if run.source is None or _is_role(run) else run.source.message


def _is_role(run: Run) -> bool:
    """Returns whether a run is the name of a message's role."""
    return isinstance(run.source, Leaf) and run.source.path == ("role",)


def _unclear(number: int, why: str) -> ValueError:
    """Returns the error of a template that does not show where a turn is."""
    return ValueError(
        f"the chat template does not show where the model's turn in message {number} is: {why}; {_WAY_OUT}"
    )
