"""Messages of a conversation, checked and in the form that chat templates read, and which of them are trained on.

Owns checking, and the flags that leave a turn out of training. Leaves ShareGPT's form and calls in separate messages to
`sft.forms.sharegpt`, forms on which templates disagree to `sft.fitting`, and rendering to `sft.template`.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from packhorse.parameters import parameter
from packhorse.sft.forms.plain_data import plain_data
from packhorse.sft.forms.sharegpt import CALL_NAMES, calls_of

Turns = Literal["all", "last"]
"""Which turns of the trained roles are trained on."""

NEVER_TRAINED = ("system", "developer", "user", "tool", "function", "ipython")
"""Roles whose messages the model never writes."""
REASONING = ("reasoning_content", "thinking", "reasoning", "reasoning_text", "thought", "thoughts")
"""Keys of the model's reasoning before its answer; templates read the first two."""
_REASONING_SET = frozenset(REASONING)

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
"""Words in keys that may be flags."""

_ALL_CALLS = frozenset(("tool_calls", *CALL_NAMES))
"""Keys of a message that may hold calls."""

_EXAMPLE = '{"type": "text", "text": "…"}'
"""A part of a content, as errors show it."""


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
    messages: Sequence[Mapping[str, Any]], trained_turns: TrainedTurns, known: Collection[str] = ()
) -> Conversation:
    """Checks messages, copies them as plain data, and applies the flags that leave a message out of training.

    Args:
        messages: the messages, each with a role.
        trained_turns: which messages are trained on, if no flag leaves them out.
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
            if not isinstance(value, str):  # a flag is never text
                _check_key(number, key, value, known)
        plain.append(_with_reasoning(number, _with_calls(number, fields)))
        if fields["role"] in trained_turns.roles:
            own.append(number)
            if all(flags):  # also without any
                trained.append(number)
    candidates = own[-1:] if trained_turns.turns == "last" else own
    return Conversation(plain, tuple(own), frozenset(trained).intersection(candidates))


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
    if _REASONING_SET.isdisjoint(fields):
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
    given = [name for name in ("tool_calls", *CALL_NAMES) if fields.get(name)]
    rest = {key: value for key, value in fields.items() if key not in _ALL_CALLS}
    if not given:
        return rest
    if len(given) > 1:
        raise ValueError(f"message {number} has {' and '.join(given)}; keep one of them")
    [name] = given
    calls = fields[name]
    if name == "tool_calls" and isinstance(calls, list) and all(isinstance(call, Mapping) for call in calls):
        # As they are, in the order of the data, but without the other, empty keys of calls.
        return {key: value for key, value in fields.items() if key == name or key in rest}
    return {**rest, "tool_calls": calls_of(number, name, calls)}


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
