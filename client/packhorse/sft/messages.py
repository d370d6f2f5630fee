"""Messages of a conversation, checked and in the form that chat templates read, and which of them are trained on.

Owns checking, and the forms in which conversations are published: ShareGPT's (`{"from": "human", "value": "…"}`), calls
in separate messages or keys, flags that leave a turn out of training. Leaves forms on which templates disagree to
`sft.fitting`, and rendering to `sft.template`.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from packhorse.parameters import parameter

Turns = Literal["all", "last"]
"""Which turns of the trained roles are trained on."""

NEVER_TRAINED = ("system", "developer", "user", "tool", "function", "ipython")
"""Roles whose messages the model never writes."""
REASONING = ("reasoning_content", "thinking", "reasoning", "reasoning_text", "thought", "thoughts")
"""Keys of the model's reasoning before its answer; templates read the first two."""
_REASONING = frozenset(REASONING)
WORDS_MARK = "\ufdd2"
"""A code point that is in no text (Unicode: a noncharacter), with which conversations are rendered for comparison."""

FLAGS = {
    "train": True,
    "training": True,
    "trainable": True,
    "loss": True,
    "weight": True,
    "loss_weight": True,
    "loss_mask": True,
    "loss_scale": True,
    "mask": False,
    "masked": False,
    "is_masked": False,
    "ignore_loss": False,
}
"""Key that says whether a message is trained on → the value that says yes."""
_FLAG_LIKE = re.compile(r"train|loss|weight|mask")
"""Part of a key that may be a flag."""

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
_SPEAKER, _WORDS, _CALLS = "from", "value", ("tool_call", "function_call")
"""ShareGPT's keys of the speaker and of the words, and the speakers, or keys of a message, that are calls."""
_ALL_CALLS = frozenset(("tool_calls", *_CALLS))

_EXAMPLE = '{"type": "text", "text": "…"}'
"""A part of a content, for messages."""

_NAMES: dict[type, str] = {
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    Mapping: "an object",
    type(None): "null",
}
"""JSON's types → their names in messages; bool is before int, because a Python bool is an int."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedTurns:
    """Which messages are trained on: all messages of the roles that the model plays, or the last one of them."""

    roles: Collection[str] = ("assistant",)
    """Roles that the model plays."""
    turns: Turns = "all"

    def __post_init__(self) -> None:
        """Checks roles and turns."""
        if isinstance(self.roles, str) or not self.roles:
            raise ValueError(f"train_on is {self.roles!r}; it is a list of one or more roles, such as ('assistant',)")
        refused = [role for role in self.roles if role in NEVER_TRAINED]
        if refused:
            raise ValueError(f"train_on names {refused[0]!r}, whose messages the model never writes; leave it out")
        if self.turns not in get_args(Turns):
            raise ValueError(
                parameter("train_turns") + f" is {self.turns!r}; choose one of {', '.join(get_args(Turns))}"
            )


@dataclass(frozen=True, slots=True)
class Conversation:
    """A checked conversation."""

    messages: list[dict[str, Any]]
    """The messages, as JSON values only, for the template."""
    own: tuple[int, ...]
    """Numbers of the messages whose role the model plays, ascending."""
    trained: frozenset[int]
    """Numbers of the messages that are trained on, a subset of `own`."""


def check_conversation(
    messages: Sequence[Mapping[str, Any]], wanted: TrainedTurns, known: Collection[str] = ()
) -> Conversation:
    """Checks messages, copies them as plain data, and applies the flags that leave a message out of training.

    Args:
        messages: the messages, each with a role.
        wanted: which messages are trained on, if no flag leaves them out.
        known: further keys that may look like flags, because the template reads them or the user ignores them.

    Raises:
        ValueError: the messages are not a list of mappings with roles, or hold something that is not JSON; a flag is
            not known.
    """
    if isinstance(messages, str | Mapping) or not len(messages):
        raise ValueError("messages must be a list of at least one message, each with a role and its content")
    plain: list[dict[str, Any]] = []
    own: list[int] = []
    trained: list[int] = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            found = sorted(map(str, message)) if isinstance(message, Mapping) else type(message).__name__
            raise ValueError(f"message {number} needs a role and a content; it has {found}")
        # Tables have None for a missing value, while templates ask whether a key is there. A content may be null.
        fields = {
            str(key): plain_data(value, f"message {number}")
            for key, value in message.items()
            if value is not None or key == "content"
        }
        flags = [] if FLAGS.keys().isdisjoint(fields) else _taken_flags(number, fields)
        for key, value in fields.items():
            if not isinstance(value, str):
                _check_key(number, key, value, known)
        plain.append(_with_reasoning(number, _with_calls(number, fields)))
        if fields["role"] in wanted.roles:
            own.append(number)
            trained += [number] if all(flags) else []
    last = own[-1:] if wanted.turns == "last" else own
    return Conversation(plain, tuple(own), frozenset(trained).intersection(last))


def _taken_flags(number: int, fields: dict[str, Any]) -> list[bool]:
    """Removes the flags from a message's fields, and returns whether each says that it is trained on."""
    return [_flag(number, name, fields.pop(name)) for name in FLAGS if name in fields]


def _flag(number: int, name: str, value: Any) -> bool:
    """Returns whether a flag says that its message is trained on."""
    if not isinstance(value, bool) and value not in (0, 1):
        raise ValueError(f"message {number}: {name} is {value!r}; it must be true or false, or 0 or 1")
    return bool(value) == FLAGS[name]


def _check_key(number: int, key: str, value: Any, known: Collection[str]) -> None:
    """Raises a ValueError for an unknown key that may be a flag: nobody would notice that it is ignored."""
    if key in known or not (isinstance(value, bool) or _FLAG_LIKE.search(key)):
        return
    raise ValueError(
        f"message {number} has {key}: {json.dumps(value)}, which neither the chat template nor tokenizing knows; a "
        f"flag that leaves a turn out is called {', '.join(FLAGS)}; name it among the fields to ignore if it says "
        "nothing"
    )


def _with_reasoning(number: int, fields: dict[str, Any]) -> dict[str, Any]:
    """Returns a message whose reasoning also has the two names that templates read, whatever its name in the data."""
    if _REASONING.isdisjoint(fields):
        return fields
    given = {name: fields[name] for name in REASONING if isinstance(fields.get(name), str)}
    if not given:
        return fields
    if len({text for text in given.values() if text.strip()}) > 1:
        raise ValueError(f"message {number} has different texts as {' and '.join(given)}; keep one of them")
    reasoning = next((text for text in given.values() if text.strip()), next(iter(given.values())))
    # The data's own name comes first, because the report of what is lost uses the first one.
    return {**fields, **dict.fromkeys((*given, "thinking", "reasoning_content"), reasoning)}


def _with_calls(number: int, fields: dict[str, Any]) -> dict[str, Any]:
    """Returns a message whose calls are a list under `tool_calls`; without that key if there are none."""
    if _ALL_CALLS.isdisjoint(fields):
        return fields
    named = [name for name in ("tool_calls", *_CALLS) if fields.get(name)]
    rest = {key: value for key, value in fields.items() if key not in _ALL_CALLS}
    if not named:
        return rest
    if len(named) > 1:
        raise ValueError(f"message {number} has {' and '.join(named)}; keep one of them")
    calls = fields[named[0]]
    if named[0] == "tool_calls" and isinstance(calls, list) and all(isinstance(call, Mapping) for call in calls):
        return {key: value for key, value in fields.items() if key == "tool_calls" or key in rest}
    return {**rest, "tool_calls": _calls(number, named[0], calls)}


def as_messages(conversation: Any) -> Any:
    """Turns a conversation in a published form into messages with role and content; returns any other as it is.

    Other fields of a message, such as `weight` or `train`, stay. Messages may be JSON text. A message from the speaker
    `function_call` or `tool_call`, which holds JSON text, becomes calls in an assistant's message; several such
    messages in a row become one.

    Example:
        >>> as_messages([{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello", "weight": 1}])
        [{'role': 'user', 'content': 'hi'}, {'role': 'assistant', 'content': 'hello', 'weight': 1}]

    Raises:
        ValueError: a speaker's name is not known, or a call is not JSON.
    """
    if not isinstance(conversation, Sequence) or isinstance(conversation, str) or not conversation:
        return conversation
    if all(isinstance(message, str) for message in conversation):
        conversation = [_parsed_message(number, message) for number, message in enumerate(conversation)]
    if not all(isinstance(message, Mapping) for message in conversation):
        return conversation
    if not any(_is_sharegpt(message) or message.get("role") in _CALLS for message in conversation):
        return conversation
    found: list[Any] = []
    for number, message in enumerate(conversation):
        speaker, words = (_SPEAKER, _WORDS) if _is_sharegpt(message) else ("role", "content")
        name = message.get(speaker)
        if name not in _CALLS and speaker == "role":
            found.append(message)
            continue
        role = _ROLES.get(name)
        if role is None:
            raise ValueError(
                f"message {number} is from {name!r}; in ShareGPT's form it is from one of {', '.join(_ROLES)}"
            )
        rest = {key: value for key, value in message.items() if key not in (speaker, words)}
        if name not in _CALLS:
            found.append({"role": role, "content": message[words], **rest})
            continue
        calls = _calls(number, name, message.get(words))
        if found and number and conversation[number - 1].get(speaker) in _CALLS:
            found[-1] = {**found[-1], **rest, "tool_calls": [*found[-1]["tool_calls"], *calls]}
        else:
            found.append({"role": role, "content": "", "tool_calls": calls, **rest})
    return found


def _parsed_message(number: int, text: str) -> Any:
    """Returns a message that is given as JSON text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"message {number} is text that is not JSON: {json_fault(error)}") from None


def _is_sharegpt(message: Mapping[str, Any]) -> bool:
    """Returns whether a message has ShareGPT's keys instead of a role."""
    return message.get("role") is None and isinstance(message.get(_SPEAKER), str) and _WORDS in message


def _calls(number: int, name: str, words: Any) -> list[dict[str, Any]]:
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


def check_contents(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raises a ValueError for a message without content, or whose content is not text, a list of parts or a mapping."""
    for number, message in enumerate(messages):
        content, where = message.get("content"), f"message {number}, of the {message['role']},"
        if content is None:
            if not any(message.get(name) for name in ("tool_calls", *REASONING)):
                raise ValueError(f"{where} has no content; leave the message out, or give it a text")
        elif isinstance(content, list):
            for part in content:
                if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
                    raise ValueError(f"{where} has a content whose parts have no type; a part is {_EXAMPLE}")
                if part["type"] == "text" and not isinstance(part.get("text"), str):
                    raise ValueError(f"{where} has a part of type 'text' without a text; a part is {_EXAMPLE}")
        elif not isinstance(content, str | Mapping):
            raise ValueError(f"{where} has a content that is a number or true or false; write it as text")


def with_other_words(message: Mapping[str, Any], words: str) -> dict[str, Any]:
    """Returns a copy of a message with `words` as its content, without calls and reasoning."""
    kept = {key: value for key, value in message.items() if key not in ("content", "tool_calls", *REASONING)}
    content = message.get("content")
    return {**kept, "content": [{"type": "text", "text": words}] if isinstance(content, list) else words}


def plain_data(value: Any, where: str) -> Any:
    """Copies a value as JSON's types, so that a template gets no object with methods of its own.

    Raises:
        ValueError: the value contains another type, or text that has no UTF-8 form; the message begins with `where`.
    """
    if isinstance(value, str):
        text = str.__str__(value)
        if not text.isascii():
            _check_text(text, where)
        return text
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, np.generic):
        return plain_data(value.item(), where)
    if isinstance(value, dict | Mapping):
        return {plain_data(key, where): plain_data(item, where) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain_data(item, where) for item in value]
    raise ValueError(f"{where} holds a value {called(value)}; chat templates take text, numbers, lists and mappings")


def called(value: Any) -> str:
    """Returns the name of a value's type for messages.

    Example:
        >>> called([]), called(5)
        ('a list', 'a number')
    """
    for kind, name in _NAMES.items():
        if isinstance(value, kind):
            return name
    return f"of type {type(value).__name__}"


def json_fault(error: json.JSONDecodeError) -> str:
    """Returns the fault of a line of JSON, and its column.

    Example:
        >>> try:
        ...     json.loads('{"a')
        ... except json.JSONDecodeError as error:
        ...     json_fault(error)
        'Unterminated string starting at column 2'
    """
    return f"{error.msg.removesuffix(' at')} at column {error.colno}"


def _check_text(text: str, where: str) -> None:
    """Raises a ValueError for text that has no UTF-8 form, or contains WORDS_MARK."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where} has no UTF-8 form: {error.reason} at character {error.start}") from None
    if WORDS_MARK in text:
        raise ValueError(f"{where} holds U+{ord(WORDS_MARK):04X}, which is no character of text; remove it")


def pair_messages(prompt: Sequence[Mapping[str, Any]], response: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Joins a prompt and a response to one conversation, in which only the response is trained on.

    Example:
        >>> pair_messages([{"role": "user", "content": "hi"}], [{"role": "assistant", "content": "hello"}])
        [{'role': 'user', 'content': 'hi', 'train': False}, {'role': 'assistant', 'content': 'hello'}]

    Both are lists of messages, with role and content or in ShareGPT's form.

    Raises:
        ValueError: one is not such a list, or the prompt ends with a turn of the assistant.
    """
    before, after = as_messages(prompt), as_messages(response)
    if not all(isinstance(message, Mapping) for message in (*before, *after)):
        raise ValueError("a prompt and a response must be text, or lists of messages with a role and a content each")
    if before and before[-1].get("role") == "assistant":
        raise ValueError(
            "the prompt ends with a turn of the assistant, which the response would continue; move its content "
            "into the response"
        )
    return [*({**message, "train": False} for message in before), *after]
