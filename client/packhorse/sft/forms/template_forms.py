"""Conversions between the forms of messages on which published data and chat templates disagree.

Owns arguments as JSON text or as objects, content in parts or as text, null, calls with and without `function`, and the
role of their results. Leaves which form a template reads to `sft.fitting`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from packhorse.sft.forms.plain_data import json_fault

Messages = list[dict[str, Any]]
"""The messages of a conversation, each as its keys and values."""


@dataclass(frozen=True, slots=True)
class TemplateForm:
    """A form of messages, which a template may read where it does not read the row's own."""

    convert: Callable[[Messages], Messages | None]
    """Returns messages in this form; None if they have it already."""
    is_for_refused: bool = False
    """Whether it is tried only if the template refused all forms before it."""


def _without_nulls(messages: Messages) -> Messages | None:
    """Returns messages without keys whose value is null; None if no content is null."""
    if not any(message.get("content", "") is None for message in messages):
        return None
    return [{key: value for key, value in message.items() if value is not None} for message in messages]


def _with_empty_contents(messages: Messages) -> Messages | None:
    """Returns messages with an empty content instead of none; None if every message has a content."""
    if all("content" in message for message in messages):
        return None
    return [{"content": "", **message} for message in messages]


def _with_tool_roles(messages: Messages) -> Messages | None:
    """Returns messages with the role `tool` for results of functions, a role that OpenAI once called `function`."""
    if not any(message["role"] == "function" for message in messages):
        return None
    return [{**message, "role": "tool"} if message["role"] == "function" else message for message in messages]


def _with_functions(messages: Messages) -> Messages | None:
    """Returns messages with calls in OpenAI's form: `{"type": "function", "function": {"name": …, "arguments": …}}`."""

    def convert(number: int, call: dict[str, Any]) -> dict[str, Any]:
        """Moves a call's name and arguments into `function`; other keys stay beside it."""
        if "function" in call:
            return call
        beside = {key: value for key, value in call.items() if key not in ("name", "arguments", "type")}
        function = {key: value for key, value in call.items() if key in ("name", "arguments")}
        return {**beside, "type": "function", "function": function}

    return _with_calls(messages, convert)


def _with_objects(messages: Messages) -> Messages | None:
    """Returns messages with arguments of calls as objects."""

    def convert(number: int, arguments: Any) -> Any:
        """Parses arguments that are JSON text."""
        if not isinstance(arguments, str):
            return arguments
        try:
            return json.loads(arguments) if arguments.strip() else {}
        except json.JSONDecodeError as error:
            raise ValueError(
                f"message {number} calls a function with arguments that are not JSON: {json_fault(error)}; correct "
                "them, or leave the row out"
            ) from None

    return _with_arguments(messages, convert)


def _with_texts(messages: Messages) -> Messages | None:
    """Returns messages with arguments of calls as JSON text."""

    def convert(number: int, arguments: Any) -> Any:
        """Writes arguments that are not text as JSON."""
        return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)

    return _with_arguments(messages, convert)


def _with_joined_parts(messages: Messages) -> Messages | None:
    """Returns messages whose contents are text, their parts joined; a part that is thinking becomes reasoning."""
    if not any(isinstance(message.get("content"), list | dict) for message in messages):
        return None
    return [_joined(number, message) for number, message in enumerate(messages)]


TEMPLATE_FORMS = (
    TemplateForm(_without_nulls),
    TemplateForm(_with_empty_contents, is_for_refused=True),
    TemplateForm(_with_tool_roles),
    TemplateForm(_with_functions),
    TemplateForm(_with_objects),
    TemplateForm(_with_texts),
    TemplateForm(_with_joined_parts),
)
"""Forms that `fit` tries, in this order."""


def _with_calls(messages: Messages, convert: Callable[[int, dict[str, Any]], dict[str, Any]]) -> Messages | None:
    """Returns messages with every call converted; None if nothing changes. `convert` gets the message's number too."""
    changed = [
        {**message, "tool_calls": [convert(number, call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for number, message in enumerate(messages)
    ]
    return None if changed == messages else changed


def _with_arguments(messages: Messages, convert: Callable[[int, Any], Any]) -> Messages | None:
    """Returns messages with the arguments of every call converted; None if nothing changes."""
    return _with_calls(messages, lambda number, call: _other_arguments(number, call, convert))


def _other_arguments(number: int, call: dict[str, Any], convert: Callable[[int, Any], Any]) -> dict[str, Any]:
    """Returns a call with its arguments converted, whether they are in `function` or in the call itself."""
    if isinstance(call.get("function"), Mapping):
        return {**call, "function": _other_arguments(number, call["function"], convert)}
    return {**call, "arguments": convert(number, call["arguments"])} if "arguments" in call else call


def _joined(number: int, message: dict[str, Any]) -> dict[str, Any]:
    """Returns a message whose content is text.

    Raises:
        ValueError: a part is neither text nor reasoning, or its reasoning differs from that beside the content.
    """
    content = message.get("content")
    if isinstance(content, Mapping):
        raise ValueError(
            f"message {number} has a content that is a mapping, which the chat template does not write; give it as text"
        )
    if not isinstance(content, list):
        return message
    thoughts: list[str] = []
    texts: list[str] = []
    for part in content:
        thought = next((part[key] for key in ("thinking", "reasoning") if isinstance(part.get(key), str)), None)
        if thought is not None:
            thoughts.append(thought)
        elif part["type"] == "text":
            texts.append(part["text"])
        else:
            raise ValueError(
                f"message {number} holds a part of type {part['type']!r}, which the chat template does not write; "
                "leave it out, or use a template that does"
            )
    if not thoughts:
        return {**message, "content": "".join(texts)}
    reasoning = "".join(thoughts)
    given = (message.get(key) for key in ("thinking", "reasoning_content"))
    beside = next((each for each in given if (each.strip() if isinstance(each, str) else each)), "")
    if beside and reasoning.strip() and beside != reasoning:
        raise ValueError(f"message {number} has another reasoning in its content than beside it; keep one of them")
    named = dict.fromkeys(("thinking", "reasoning_content"), beside or reasoning)
    # Before the other keys, because a report of what is lost uses the first name; and after them, in case one is empty.
    return {**named, **message, **named, "content": "".join(texts)}
