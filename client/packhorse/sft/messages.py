"""Messages as a chat template may see them, and which of them are trained on.

Owns checking a conversation, and reading ShareGPT's form (`{"from": "human", "value": "…"}`). Leaves rendering to
`sft.template`.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

Turns = Literal["all", "last"]
"""Which turns of the trained roles are trained on."""

NEVER_TRAINED = ("system", "developer", "user", "tool", "function", "ipython")
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of the model's reasoning before its answer."""
OPEN_MARK, CLOSE_MARK, WORDS_MARK = "\ufdd0", "\ufdd1", "\ufdd2"
"""Code points that Unicode keeps out of text; the search for turns puts them into its own renderings."""

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
"""ShareGPT's names of speakers → role."""
_SPEAKER, _WORDS, _CALL = "from", "value", "function_call"

_EXAMPLE = '{"type": "text", "text": "…"}'

_NAMES: dict[type, str] = {
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    Mapping: "an object",
    type(None): "null",
}
"""Types of JSON, as messages name them; bool before int, since it is one in Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedTurns:
    """Which messages are trained on: of the roles that the model plays, all or the last one of the conversation."""

    roles: Collection[str] = ("assistant",)
    turns: Turns = "all"

    def __post_init__(self) -> None:
        if isinstance(self.roles, str) or not self.roles:
            raise ValueError(f"train_on is {self.roles!r}; it is a list of one or more roles, such as ('assistant',)")
        refused = [role for role in self.roles if role in NEVER_TRAINED]
        if refused:
            raise ValueError(f"train_on names {refused[0]!r}, whose messages the model never writes; leave it out")
        if self.turns not in get_args(Turns):
            raise ValueError(f"train_turns is {self.turns!r}; choose one of {', '.join(get_args(Turns))}")


@dataclass(frozen=True, slots=True)
class Conversation:
    """A checked conversation."""

    messages: list[dict[str, Any]]
    """JSON values only, for the template."""
    own: tuple[int, ...]
    """Messages of the roles that the model plays."""
    trained: frozenset[int]
    """Those that are trained on."""


def check_conversation(messages: Sequence[Mapping[str, Any]], wanted: TrainedTurns) -> Conversation:
    """Turns messages into plain data, and removes `train: false` and `weight: 0`, which exclude one from training.

    Raises:
        ValueError: the messages are not a list of mappings with roles, or hold something that is not JSON.
    """
    if isinstance(messages, str | Mapping) or not len(messages):
        raise ValueError("messages must be a list of at least one message, each with a role and its content")
    plain: list[dict[str, Any]] = []
    own: list[int] = []
    is_wanted: list[bool] = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            found = sorted(map(str, message)) if isinstance(message, Mapping) else type(message).__name__
            raise ValueError(f"message {number} needs a role and a content; it has {found}")
        # Tables have None for a missing value, while templates ask whether a key is there.
        fields = {
            str(key): plain_data(value, f"message {number}") for key, value in message.items() if value is not None
        }
        train = _wants_training(number, fields.pop("train", True), fields.pop("weight", 1))
        reasoning = next((fields[key] for key in REASONING if key in fields), None)
        if reasoning is not None:
            # Templates read one of these names, whichever the data uses.
            fields = {"thinking": reasoning, **fields, "reasoning_content": reasoning}
        plain.append(fields)
        if fields["role"] in wanted.roles:
            own.append(number)
            is_wanted.append(train)
    if wanted.turns == "last":
        is_wanted[:-1] = [False] * (len(is_wanted) - 1)
    return Conversation(
        plain, tuple(own), frozenset(number for number, train in zip(own, is_wanted, strict=True) if train)
    )


def as_messages(conversation: Any) -> Any:
    """Turns a conversation in ShareGPT's form into messages with role and content; returns any other as it is.

    Other fields of a message, such as `weight` or `train`, stay. A `function_call`, which is JSON text, becomes the
    tool calls of an assistant's message.

    Example:
        >>> as_messages([{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello", "weight": 1}])
        [{'role': 'user', 'content': 'hi'}, {'role': 'assistant', 'content': 'hello', 'weight': 1}]

    Raises:
        ValueError: a speaker's name is not known, or a call is not JSON.
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


def check_contents(messages: Sequence[Mapping[str, Any]]) -> None:
    """Refuses messages without content, and content that is not text, a list of parts or a mapping: a ValueError."""
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
    """Returns a message of the same role with the content `words`, without calls and reasoning."""
    kept = {key: value for key, value in message.items() if key not in ("content", "tool_calls", *REASONING)}
    content = message.get("content")
    return {**kept, "content": [{"type": "text", "text": words}] if isinstance(content, list) else words}


def with_other_call(message: Mapping[str, Any], words: str) -> dict[str, Any]:
    """Returns the message with functions named `words` instead of those that it calls."""
    calls = [
        {**call, "function": {**call["function"], "name": words}} if "function" in call else {**call, "name": words}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def plain_data(value: Any, where: str) -> Any:
    """Copies a value in JSON's types, so that a template gets no object with methods of its own.

    Raises:
        ValueError: it contains something else, or text that has no UTF-8 form; the message begins with `where`.
    """
    if isinstance(value, str):
        text = str.__str__(value)
        if not text.isascii():
            _check_text(text, where)
        return text
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, np.generic):
        return plain_data(value.item(), where)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
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


def _wants_training(number: int, train: Any, weight: Any) -> bool:
    if not isinstance(train, bool):
        raise ValueError(f"message {number}: train is {train!r}; it must be true or false")
    if weight not in (0, 1):
        raise ValueError(f"message {number}: weight is {weight!r}; it must be 0 or 1")
    return train and bool(weight)


def _check_text(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where} has no UTF-8 form: {error.reason} at character {error.start}") from None
    mark = next((mark for mark in (OPEN_MARK, CLOSE_MARK, WORDS_MARK) if mark in text), None)
    if mark is not None:
        raise ValueError(f"{where} holds U+{ord(mark):04X}, which is no character of text; remove it")
