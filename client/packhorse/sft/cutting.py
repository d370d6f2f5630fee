"""Cutting a conversation to a number of tokens.

Owns what goes first: the oldest exchanges, each a question with all that answers it; then the beginning of the longest
text that is not the model's. What the system says, headers, ends of turns and the model's own text always stay whole:
a cut answer would teach to stop within it, or never to stop. Leaves rendering to `sft.rendering`.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

from packhorse.sft.messages import Conversation

Cutoff = Literal["oldest", "drop"]
"""What happens to a conversation that is too long: its oldest parts go, or it goes."""

_OPENING = ("system", "developer")


def without_oldest(chat: Conversation) -> Conversation | None:
    """Returns a conversation without its oldest exchange; None if there is only one.

    Example:
        >>> roles = ("system", "user", "assistant", "user", "assistant")
        >>> messages = [{"role": role, "content": str(number)} for number, role in enumerate(roles)]
        >>> shorter = without_oldest(Conversation(messages, (2, 4), frozenset({2, 4})))
        >>> [message["content"] for message in shorter.messages], shorter.own
        (['0', '3', '4'], (2,))
    """
    roles = [message["role"] for message in chat.messages]
    begin = next((at for at, role in enumerate(roles) if role not in _OPENING), len(roles))
    end = next((at for at in range(begin + 1, len(roles)) if roles[at] == "user" and roles[at - 1] != "user"), None)
    if end is None:
        return None

    def moved(number: int) -> int:
        return number - (end - begin)

    return replace(
        chat,
        messages=[*chat.messages[:begin], *chat.messages[end:]],
        own=tuple(moved(number) for number in chat.own if number >= end),
        trained=frozenset(moved(number) for number in chat.trained if number >= end),
    )


def with_shorter_text(chat: Conversation, excess: int, num_tokens_of: Callable[[str], int]) -> Conversation | None:
    """Returns a conversation whose longest text that is not the model's lost up to `excess` tokens at its beginning.

    None if there is no such text of more than a token.
    """
    texts = [
        (num_tokens_of(text), number, part)
        for number, message in enumerate(chat.messages)
        if number not in chat.own and message["role"] not in _OPENING
        for part, text in _texts(message.get("content"))
    ]
    longest, number, part = max(texts, default=(0, 0, None), key=lambda text: text[0])
    room = max(1, longest - excess)
    if longest <= room:
        return None
    text = dict(_texts(chat.messages[number]["content"]))[part]
    low, high = 0, len(text)
    while low < high:  # the fewest characters that make it short enough
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
    """Yields a content's texts, each with the number of its part."""
    if isinstance(content, str):
        yield None, content
    for number, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part.get("text"), str):
            yield number, part["text"]
