"""ShareGPT's form of a conversation, and calls in separate messages or keys, to messages with role and content.

Owns the names of speakers and of calls. Leaves checking messages to `sft.messages`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from packhorse.sft.forms.plain_data import json_fault

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
    "tool_response": "tool",
    "function_call": "assistant",
    "tool_call": "assistant",
    "developer": "developer",
}
"""Speaker in ShareGPT's form → role."""
_SPEAKER, _WORDS = "from", "value"
"""ShareGPT's keys of the speaker and of the words."""
CALL_NAMES = ("tool_call", "function_call")
"""Speakers whose messages are calls; other data has these names as keys of a message."""


def as_messages(conversation: Any) -> Any:
    """Turns a conversation in a published form into messages with role and content; returns any other as it is.

    Other fields of a message, such as `weight` or `train`, stay. Messages may be JSON text. A message from the speaker
    `function_call` or `tool_call`, which holds JSON text, becomes calls in an assistant's message; several such
    messages in a row become one.

    Example:
        >>> as_messages([{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello", "weight": 1}])
        [{'role': 'user', 'content': 'hi'}, {'role': 'assistant', 'content': 'hello', 'weight': 1}]

    Raises:
        ValueError: a speaker's name is not known, a call is not JSON, or a message has two different words.
    """
    if not isinstance(conversation, Sequence) or isinstance(conversation, str) or not conversation:
        return conversation
    if all(isinstance(message, str) for message in conversation):
        conversation = [_parsed_message(number, message) for number, message in enumerate(conversation)]
    if not all(isinstance(message, Mapping) for message in conversation):
        return conversation
    if not any(_is_sharegpt(message) or message.get("role") in CALL_NAMES for message in conversation):
        return conversation
    found: list[Any] = []
    for number, message in enumerate(conversation):
        speaker_key, words_key = (_SPEAKER, _WORDS) if _is_sharegpt(message) else ("role", "content")
        speaker = message.get(speaker_key)
        if speaker_key == "role" and speaker not in CALL_NAMES:
            found.append(message)  # it has role and content already
            continue
        role = _role_of(number, speaker)
        # Tables have null or an empty text for a key that a message lacks, also for the two that it gets here.
        rest = {
            key: value
            for key, value in message.items()
            if key not in (speaker_key, words_key) and (value or key not in ("role", "content"))
        }
        if speaker not in CALL_NAMES:
            if rest.get("content", message[words_key]) != message[words_key]:
                raise ValueError(
                    f"message {number} has words in {words_key!r} and others in 'content'; keep one of them"
                )
            found.append({"role": role, "content": message[words_key], **rest})
            continue
        calls = calls_of(number, speaker, message.get(words_key))
        if number and conversation[number - 1].get(speaker_key) in CALL_NAMES:  # several messages, one turn
            found[-1] = {**found[-1], **rest, "tool_calls": [*found[-1]["tool_calls"], *calls]}
        else:
            found.append({"role": role, "content": "", "tool_calls": calls, **rest})
    return found


def _role_of(number: int, speaker: Any) -> str:
    """Returns a speaker's role; a ValueError if the name is not known."""
    role = _ROLES.get(speaker)
    if role is None:
        raise ValueError(
            f"message {number} is from {speaker!r}; in ShareGPT's form it is from one of {', '.join(_ROLES)}"
        )
    return role


def _parsed_message(number: int, text: str) -> Any:
    """Returns a message that is given as JSON text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"message {number} is text that is not JSON: {json_fault(error)}") from None


def _is_sharegpt(message: Mapping[str, Any]) -> bool:
    """Returns whether a message has ShareGPT's keys instead of a role."""
    return not message.get("role") and isinstance(message.get(_SPEAKER), str) and _WORDS in message


def calls_of(number: int, name: str, words: Any) -> list[dict[str, Any]]:
    """Returns calls of functions in OpenAI's form, from JSON text or values; `name` is their key or speaker."""
    try:
        calls = json.loads(words) if isinstance(words, str) else words
        calls = calls if isinstance(calls, list) else [calls]
        calls = [json.loads(call) if isinstance(call, str) else call for call in calls]
    except json.JSONDecodeError as error:
        raise ValueError(f"message {number} is a {name} that is not JSON: {json_fault(error)}") from None
    if all(isinstance(call, Mapping) and isinstance(call.get("function"), Mapping) for call in calls):
        return list(calls)
    if not all(isinstance(call, Mapping) and isinstance(call.get("name"), str) for call in calls):
        raise ValueError(f"message {number} is a {name} without a name; it is {{'name': …, 'arguments': …}}")
    return [
        {
            **{key: value for key, value in call.items() if key == "id"},
            "type": "function",
            "function": {"name": call["name"], "arguments": call.get("arguments", call.get("parameters", {}))},
        }
        for call in calls
    ]
