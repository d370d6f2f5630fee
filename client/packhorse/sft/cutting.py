"""Cutting a conversation that is too long.

Owns the least cutoff, and what goes first: the oldest exchange, which is a question with all that answers it; then the
beginning of the longest text that is not the model's. What the system says, headers, ends of turns and the model's own
text always stay whole, because half an answer would teach the model to stop in the middle, or never to stop. Leaves
rendering the shorter conversation to `sft.chat`.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

from packhorse.sft.messages import Conversation

Cutoff = Literal["oldest", "drop"]
"""What happens to a conversation that is too long: its oldest parts are cut, or it is dropped."""

_NEVER_CUT_ROLES = ("system", "developer")
"""Roles of messages that are never cut."""


def check_max_tokens(max_tokens: int | None) -> int | None:
    """Returns `max_tokens`, None for no limit; a ValueError if it is below 2: a first token is never trained on."""
    if max_tokens is not None and max_tokens < 2:
        raise ValueError(f"max_tokens is {max_tokens}; a sequence to train on has at least 2 tokens")
    return max_tokens


def without_oldest(chat: Conversation) -> Conversation | None:
    """Returns a conversation without its oldest exchange; None if it has only one exchange.

    Example:
        >>> roles = ("system", "user", "assistant", "user", "assistant")
        >>> messages = [{"role": role, "content": str(number)} for number, role in enumerate(roles)]
        >>> shorter = without_oldest(Conversation(messages, (2, 4), frozenset({2, 4})))
        >>> [message["content"] for message in shorter.messages], shorter.own
        (['0', '3', '4'], (2,))
    """
    roles = [message["role"] for message in chat.messages]
    begin = next((at for at, role in enumerate(roles) if role not in _NEVER_CUT_ROLES), len(roles))
    # The next exchange begins with a user's message; several of a user in a row are one question.
    end = next((at for at in range(begin + 1, len(roles)) if roles[at] == "user" and roles[at - 1] != "user"), None)
    if end is None:
        return None

    kept = [message for message in chat.messages[begin:end] if message["role"] in _NEVER_CUT_ROLES]

    def moved(number: int) -> int:
        """Returns the new number of a message after the cut."""
        return number - (end - begin - len(kept))

    return replace(
        chat,
        messages=[*chat.messages[:begin], *kept, *chat.messages[end:]],
        own=tuple(moved(number) for number in chat.own if number >= end),
        trained=frozenset(moved(number) for number in chat.trained if number >= end),
    )


def with_shorter_text(chat: Conversation, excess: int, num_tokens_of: Callable[[str], int]) -> Conversation | None:
    """Cuts the beginning of the longest text that is neither the model's nor the system's.

    Args:
        chat: the conversation.
        excess: tokens that should go; fewer go if only one would be left.
        num_tokens_of: returns the number of tokens of a text.

    Returns:
        The shorter conversation; None if there is no such text of more than a token.
    """
    # (number of the message, number of the part or None) → text
    texts = {
        (number, part): text
        for number, message in enumerate(chat.messages)
        if number not in chat.own and message["role"] not in _NEVER_CUT_ROLES
        for part, text in _texts(message.get("content"))
    }
    if not texts:
        return None
    lengths = {place: num_tokens_of(text) for place, text in texts.items()}
    longest = max(lengths, key=lengths.__getitem__)
    room = max(1, lengths[longest] - excess)
    if lengths[longest] <= room:
        return None
    text = texts[longest]
    number, part = longest
    low, high = 0, len(text)
    while low < high:  # bisects for the fewest characters to cut
        middle = (low + high) // 2
        if num_tokens_of(text[middle:]) <= room:
            high = middle
        else:
            low = middle + 1
    messages: list[dict[str, Any]] = list(chat.messages)
    content: Any = text[low:]
    if part is not None:
        parts = messages[number]["content"]
        content = [*parts[:part], {**parts[part], "text": content}, *parts[part + 1 :]]
    messages[number] = {**messages[number], "content": content}
    return replace(chat, messages=messages)


def _texts(content: Any) -> Iterator[tuple[int | None, str]]:
    """Yields a content's texts, each with the number of its part, which is None if the content is a text."""
    if isinstance(content, str):
        yield None, content
    for number, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part.get("text"), str):
            yield number, part["text"]
