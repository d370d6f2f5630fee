"""Where the model's own turns are in the text of a conversation.

Owns finding them; leaves rendering to `sft.template` and tokens to `sft.chat`. There are three ways. Each finds the
right range or none:

1. `{% generation %}` blocks mark the turns exactly.
2. A turn begins where the rendering of the messages before it, with the generation prompt, ends. It ends where the
   rendering of the messages up to it ends. Both renderings must be prefixes of the whole text.
3. A template that writes earlier turns differently from the last (leaves out reasoning, or moves tools to the last
   question) has no such prefixes. The whole conversation is then rendered with other words in the message, and the turn
   is the text that changes. Its end-of-turn token is the end of the conversation that stops there. The range must not
   overlap another message's text; else the template is refused.

A turn includes its end-of-turn token. It includes neither its header nor the white space before the next turn.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from typing import Any

from packhorse.sft.messages import WORDS_MARK, Conversation, with_other_call, with_other_words
from packhorse.sft.template import ChatTemplate, TemplateRefusal

Range = tuple[int, int]
"""[begin, end) in a text."""

_WAY_OUT = "mark the model's text, end-of-turn token included, in the template: {% generation %} … {% endgeneration %}"


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """The text of a conversation. Legend: t turns."""

    text: str
    turns: tuple[Range, ...]
    """The model's turns, ascending and disjoint: [t]."""
    is_trained: tuple[bool, ...]
    """Whether each is trained on: [t]."""


def render_chat(
    template: ChatTemplate, chat: Conversation, variables: Mapping[str, Any], special_texts: Sequence[str]
) -> RenderedChat:
    """Renders a conversation and finds the model's turns in it. A special token's text ends a turn.

    Raises:
        TemplateRefusal: the template does not render the conversation.
        ValueError: it does not show where a turn is.
    """
    if template.has_generation:
        text, blocks = template.render_generation(chat.messages, variables)
        if len(chat.trained) == len(chat.own):
            return RenderedChat(text, tuple(blocks), (True,) * len(blocks))
        search = _Search(template, chat, variables, special_texts)
        owners = [search.owner(block) for block in blocks]
        return RenderedChat(text, tuple(blocks), tuple(owner in chat.trained for owner in owners))
    search = _Search(template, chat, variables, special_texts)
    turns = tuple(search.turn(number) for number in chat.own)
    for number, before, turn in zip(chat.own[1:], turns, turns[1:], strict=False):
        if turn[0] < before[1]:
            raise _unclear(number, "its turn begins before the one before it ends")
    return RenderedChat(search.text, turns, tuple(number in chat.trained for number in chat.own))


class _Search:
    """The search for the turns of one conversation."""

    def __init__(
        self, template: ChatTemplate, chat: Conversation, variables: Mapping[str, Any], special_texts: Sequence[str]
    ) -> None:
        self._template = template
        self._chat = chat
        self._variables = variables
        self._special_texts = tuple(special_texts)
        self._found: dict[int, Range | None] = {}
        self._found_by_call: set[int] = set()
        self.text = template.render(chat.messages, variables)

    def turn(self, number: int) -> Range:
        """Returns the range of a message's turn, end-of-turn token included."""
        begin = self._begin_by_prefix(number)
        end = self._prefix(number + 1, add_generation_prompt=False)
        if begin is None or end is None:
            said = self._checked_words(number)
            begin = said[0] if begin is None else begin
            end = said[1] + self._closing_length(number, said[1]) if end is None else end
        end = self._without_glue(begin, end)
        if begin > end:
            raise _unclear(number, "its turn ends before it begins")
        return begin, end

    def owner(self, block: Range) -> int:
        """Returns the message that a generation block belongs to."""
        said = {number: self._words(number) for number in self._chat.own}
        owners = [number for number, where in said.items() if where and where[0] <= block[1] and block[0] <= where[1]]
        if len(owners) != 1 or None in said.values():
            raise ValueError(
                "the template's {% generation %} blocks cannot be assigned to messages, and only some turns are to be "
                "trained on; train on all turns, or leave marked messages out"
            )
        return owners[0]

    def _begin_by_prefix(self, number: int) -> int | None:
        begin = self._prefix(number, add_generation_prompt=True)
        # Where the prompt adds nothing, the header would count as part of the turn.
        return begin if begin != self._prefix(number, add_generation_prompt=False) else None

    def _prefix(self, count: int, *, add_generation_prompt: bool) -> int | None:
        """Length of the rendering of the first messages, where the text begins with it."""
        if count == len(self._chat.messages):
            return len(self.text)
        prefix = self._rendered(self._chat.messages[:count], add_generation_prompt=add_generation_prompt)
        return len(prefix) if prefix is not None and self.text.startswith(prefix) else None

    def _checked_words(self, number: int) -> Range:
        """As `_words`, but refused where they overlap another message's words."""
        said = self._words(number)
        if said is None:
            raise _unclear(number, "its content cannot be found in the text")
        for other in range(len(self._chat.messages)):
            where = self._words(other) if other != number else None
            if where is not None and where[0] < said[1] and said[0] < where[1]:
                raise _unclear(number, f"other words in it change the text of message {other}")
        return said

    def _words(self, number: int) -> Range | None:
        """The range of a message's content in the whole text; None where it cannot be found."""
        if number not in self._found:
            messages = self._chat.messages
            where = self._changed(self.text, messages, number)
            if where is None and messages[number].get("tool_calls"):
                where = self._changed_call(self.text, messages, number)
                self._found_by_call.add(number)
            self._found[number] = where
        return self._found[number]

    def _closing_length(self, number: int, end: int) -> int:
        """Length of the text from `end` on that closes the turn: special tokens, and the text between them."""
        messages = self._chat.messages[: number + 1]
        try:
            text = self._template.render(messages, self._variables)
        except TemplateRefusal as error:
            raise _unclear(number, f"the conversation up to it does not render ({error})") from error
        change = self._changed_call if number in self._found_by_call else self._changed
        said = change(text, messages, number)
        if said is None:
            raise _unclear(number, "its content cannot be found in the conversation up to it")
        pairs = zip(self._split(text[said[1] :]), self._split(self.text[end:]), strict=False)
        return sum(len(part) for part, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def _split(self, text: str) -> list[str]:
        if not self._special_texts:
            return [text]
        return re.split(f"({'|'.join(map(re.escape, self._special_texts))})", text)

    def _changed(self, text: str, messages: Sequence[Mapping[str, Any]], number: int) -> Range | None:
        """The range of a conversation's text that changes with a message's content."""
        said = with_other_words(messages[number], WORDS_MARK)
        changed = self._rendered([*messages[:number], said, *messages[number + 1 :]])
        if changed is None or changed.count(WORDS_MARK) != 1:
            return None
        return _difference(text, changed, changed)

    def _changed_call(self, text: str, messages: Sequence[Mapping[str, Any]], number: int) -> Range | None:
        """The same for templates that refuse answers without their calls: the range ends with the last call's name.

        The begin of a turn does not depend on later messages, so the answers are left out as well. The text after the
        name does not change, so it counts as closing the turn.
        """
        before, after = messages[:number], messages[number + 1 :]
        later = dropwhile(lambda message: message["role"] != "user", after)
        unanswered = self._rendered([*before, with_other_words(messages[number], WORDS_MARK), *later])
        recalled = self._rendered([*before, with_other_call(messages[number], WORDS_MARK), *after])
        if unanswered is None or recalled is None or WORDS_MARK not in unanswered or WORDS_MARK not in recalled:
            return None
        return _difference(text, unanswered, recalled)

    def _rendered(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = False) -> str | None:
        """The text of other messages; None where the template does not render them."""
        try:
            return self._template.render(messages, self._variables, add_generation_prompt=add_generation_prompt)
        except TemplateRefusal:
            return None

    def _without_glue(self, begin: int, end: int) -> int:
        """The end of a turn without white space after its special token."""
        closed = self.text[begin:end].rstrip()
        return begin + len(closed) if self._special_texts and closed.endswith(self._special_texts) else end


def _difference(text: str, begin_changed: str, end_changed: str) -> Range:
    """The range in which a text differs, from one text at its begin and from another at its end."""
    # Both contain a mark that the text does not, so common beginnings and ends stop at the mark.
    begin = _common_length(text, begin_changed)
    return begin, len(text) - _common_length(text[begin:][::-1], end_changed[::-1])


def _common_length(one: str, other: str) -> int:
    """Number of first characters that two texts share; by bisection, since a loop over characters is slow."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _unclear(number: int, why: str) -> ValueError:
    return ValueError(
        f"the chat template does not show where the model's turn in message {number} is: {why}; {_WAY_OUT}"
    )
