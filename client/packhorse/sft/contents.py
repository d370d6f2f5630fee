"""What a message says: text, or a list of parts, as multimodal data has it.

Owns refusing a message that says nothing, and parts that a chat template would write as Python code; leaves the other
fields of a message to `messages`, and rendering to `template`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from packhorse.sft.messages import REASONING, Conversation
from packhorse.sft.template import ChatTemplate, TemplateRefusal

_SAID = ("tool_calls", *REASONING)
"""What a message may say instead of a content."""

_EXAMPLE = '{"type": "text", "text": "…"}'


def check_contents(messages: Sequence[Mapping[str, Any]]) -> None:
    """Refuses messages without content, and content that is neither text nor a list of parts nor a mapping.

    Args:
        messages: plain data; nothing of it is None.

    Raises:
        ValueError: there is one.
    """
    for number, message in enumerate(messages):
        content, where = message.get("content"), f"message {number}, of the {message['role']},"
        if content is None:
            if not any(message.get(name) for name in _SAID):
                raise ValueError(f"{where} has no content; leave the message out, or give it a text")
        elif isinstance(content, list):
            for part in content:
                if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
                    raise ValueError(f"{where} has a content whose parts have no type; a part is {_EXAMPLE}")
                if part["type"] == "text" and not isinstance(part.get("text"), str):
                    raise ValueError(f"{where} has a part of type 'text' without a text; a part is {_EXAMPLE}")
        elif not isinstance(content, str | Mapping):
            raise ValueError(f"{where} has a content that is a number or true or false; write it as text")


def fitted(template: ChatTemplate, chat: Conversation, variables: Mapping[str, Any]) -> Conversation:
    """Returns a conversation as the template can write it: parts stay where it knows them, else their texts are joined.

    Raises:
        ValueError: a template that does not know parts meets one that is no text.
    """
    nested = [number for number, message in enumerate(chat.messages) if isinstance(message.get("content"), list | dict)]
    if not nested:
        return chat
    try:
        text = template.render(chat.messages, variables)
        unknown = [number for number in nested if str(chat.messages[number]["content"]) in text]
    except TemplateRefusal:
        unknown = nested
    messages = list(chat.messages)
    for number in unknown:
        messages[number] = {**messages[number], "content": _joined(number, messages[number]["content"])}
    return replace(chat, messages=messages)


def _joined(number: int, content: Any) -> str:
    if isinstance(content, Mapping):
        raise ValueError(
            f"message {number} has a content that is a mapping, which the chat template does not write; give it as text"
        )
    for part in content:
        if part["type"] != "text":
            raise ValueError(
                f"message {number} holds a part of type {part['type']!r}, which the chat template does not write; "
                "leave it out, or take a template that does"
            )
    return "".join(part["text"] for part in content)
