"""Conversations in the form of ShareGPT: `{"from": "human", "value": "…"}` for each message.

Owns turning that form into messages of role and content; leaves checking those to `messages`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from packhorse.sft.messages import json_fault

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
    "observation": "tool",
    "tool": "tool",
    "function_response": "tool",
    "function_call": "assistant",
}
"""Who speaks, as ShareGPT's data sets name it → role."""
_SPEAKER, _WORDS, _CALL = "from", "value", "function_call"


def as_messages(conversation: Any) -> Any:
    """Returns a conversation's messages with role and content; one that is not in ShareGPT's form as it is.

    What else a message says of itself, such as `weight` or `train`, stays. A `function_call`, which is JSON text,
    becomes the tool calls of an assistant's message.

    Example:
        >>> as_messages([{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello", "weight": 1}])
        [{'role': 'user', 'content': 'hi'}, {'role': 'assistant', 'content': 'hello', 'weight': 1}]

    Args:
        conversation: a list of messages.

    Raises:
        ValueError: one speaks under a name that is not known, or a call is not JSON.
    """
    if not isinstance(conversation, Sequence) or isinstance(conversation, str) or not conversation:
        return conversation
    if not all(isinstance(message, Mapping) and _is_sharegpt(message) for message in conversation):
        return conversation
    return [_as_message(number, message) for number, message in enumerate(conversation)]


def _is_sharegpt(message: Mapping[str, Any]) -> bool:
    return message.get("role") is None and isinstance(message.get(_SPEAKER), str) and _WORDS in message


def _as_message(number: int, message: Mapping[str, Any]) -> dict[str, Any]:
    speaker, words = message[_SPEAKER], message[_WORDS]
    role = _ROLES.get(speaker)
    if role is None:
        raise ValueError(
            f"message {number} is from {speaker!r}; in ShareGPT's form it is from one of {', '.join(_ROLES)}"
        )
    rest = {name: value for name, value in message.items() if name not in (_SPEAKER, _WORDS)}
    if speaker == _CALL:
        return {"role": role, "content": "", "tool_calls": _calls(number, words), **rest}
    return {"role": role, "content": words, **rest}


def _calls(number: int, words: Any) -> list[dict[str, Any]]:
    try:
        calls = json.loads(words) if isinstance(words, str) else words
    except json.JSONDecodeError as error:
        raise ValueError(f"message {number} is a function_call that is not JSON: {json_fault(error)}") from None
    calls = calls if isinstance(calls, list) else [calls]
    if not all(isinstance(call, Mapping) and isinstance(call.get("name"), str) for call in calls):
        raise ValueError(f"message {number} is a function_call without a name; it is {{'name': …, 'arguments': …}}")
    return [
        {"type": "function", "function": {"name": call["name"], "arguments": call.get("arguments", {})}}
        for call in calls
    ]
