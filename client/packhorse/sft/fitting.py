"""`fit`: renders a conversation in the form that its template reads.

Owns the forms on which published data and templates disagree: arguments as JSON text or as objects, content in parts or
as text, null, calls with and without `function`, the role of their results. A template gets a conversation as it is;
another form is tried only if the template refuses it, encodes arguments twice, or leaves a content or a call out.
Leaves reporting what is missing in the end to `sft.unused`.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from packhorse.sft.messages import Conversation, json_fault
from packhorse.sft.provenance import Dump, Run
from packhorse.sft.template import ChatTemplate, TemplateRefusal, TracedText
from packhorse.sft.unused import has_text, shown_of

_Messages = list[dict[str, Any]]

_REFUSED = (3, 0, 0)
"""Faults of a form that the template refuses; compares as more than those of any other form."""


def fit(template: ChatTemplate, chat: Conversation, variables: Mapping[str, Any]) -> tuple[Conversation, TracedText]:
    """Renders a conversation in the form with the fewest faults, and returns that form and its text.

    Forms build on each other: each of `_FORMS` is applied to the best form so far, and stays if it has fewer faults.

    Raises:
        TemplateRefusal: the template refuses every form.
        ValueError: the conversation cannot be converted to a form that the template might need.
    """
    best, refusal = chat, None
    traced, faults = None, _REFUSED
    try:
        traced = template.trace(chat, variables)
        faults = _faults(template, chat, variables, traced)
    except TemplateRefusal as error:
        refusal = error
    for form in _FORMS if any(faults) else ():
        if not any(faults):
            break
        messages = form(best.messages, faults is _REFUSED)
        if messages is None:
            continue
        tried = replace(best, messages=messages)
        try:
            tried_text = template.trace(tried, variables)
        except TemplateRefusal:
            # While every form is refused, each stays: the reason may be one that a later form removes.
            best = tried if faults is _REFUSED else best
            continue
        tried_faults = _faults(template, tried, variables, tried_text)
        if tried_faults < faults:
            best, traced, faults = tried, tried_text, tried_faults
    if traced is None:
        assert refusal is not None
        raise refusal
    return best, traced


def _faults(
    template: ChatTemplate, chat: Conversation, variables: Mapping[str, Any], traced: TracedText
) -> tuple[int, int, int]:
    """Counts a form's faults, the worst kind first, so that tuples compare as forms do.

    Returns:
        (1 if null was written as a word or arguments were encoded twice, contents left out, texts of calls left out).
    """
    shown = shown_of(template, chat, variables, traced)
    calls = 0
    some: dict[int, bool] = {}  # message → whether some of its content came out
    for leaf in traced.trace.leaves:
        if leaf.message is None:
            continue
        if leaf.path == ("content",) and chat.messages[leaf.message]["role"] == "function":
            some[leaf.message] = shown.has(leaf)
        if len(leaf.path) < 2:
            continue
        if leaf.path[0] == "content" and leaf.path[-1] != "type":
            is_shown = bool(leaf.text.strip()) and shown.has(leaf) and id(leaf) not in shown.as_python
            is_text = not isinstance(leaf.path[1], int) or leaf.path[-1] in ("text", "thinking", "reasoning")
            if is_shown or (is_text and leaf.text.strip()):
                some[leaf.message] = some.get(leaf.message, False) or is_shown
        elif leaf.path[0] == "tool_calls" and ("arguments" in leaf.path or leaf.path[-1] == "name"):
            calls += not shown.has(leaf)
    python = [run.source.value for run in traced.runs if isinstance(run.source, Dump) and run.source.is_python]
    contents = sum(
        not some.get(number, True) or any(value is message.get("content") for value in python)
        for number, message in enumerate(traced.trace.messages)
    )
    contents += sum(not shown.changes(others) for others in _without_objects(chat.messages))
    nulls = [number for number, message in enumerate(chat.messages) if message.get("content", "") is None]
    is_word = bool(nulls) and any(
        run.source is None and run.writer in nulls and "None" in text for run, text in _words(traced)
    )
    return int(shown.has_text_as_json or is_word), contents, calls


def _without_objects(messages: _Messages) -> Iterator[_Messages]:
    """Yields the messages with one content emptied, for each content that is an object and holds no text.

    Such a content has no leaf to follow. If emptying it changes nothing, the template left it out.
    """
    for number, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, dict) and content and not has_text(content):
            yield [*messages[:number], {**message, "content": {}}, *messages[number + 1 :]]


def _words(traced: TracedText) -> list[tuple[Run, str]]:
    """Returns each run of a text with its characters."""
    ends = [0]
    for run in traced.runs:
        ends.append(ends[-1] + run.length)
    return [(run, traced.text[begin : begin + run.length]) for run, begin in zip(traced.runs, ends, strict=False)]


def _without_nulls(messages: _Messages, is_refused: bool) -> _Messages | None:
    """Returns messages without keys whose value is null; None if no content is null."""
    if not any(message.get("content", "") is None for message in messages):
        return None
    return [{key: value for key, value in message.items() if value is not None} for message in messages]


def _with_empty_contents(messages: _Messages, is_refused: bool) -> _Messages | None:
    """Returns messages with an empty content instead of none; None unless the template refused all forms so far."""
    if not is_refused or all("content" in message for message in messages):
        return None
    return [{"content": "", **message} for message in messages]


def _with_tool_roles(messages: _Messages, is_refused: bool) -> _Messages | None:
    """Returns messages with the role `tool` for results of functions, a role that OpenAI once called `function`."""
    if not any(message["role"] == "function" for message in messages):
        return None
    return [{**message, "role": "tool"} if message["role"] == "function" else message for message in messages]


def _with_functions(messages: _Messages, is_refused: bool) -> _Messages | None:
    """Returns messages with calls in OpenAI's form: `{"type": "function", "function": {"name": …, "arguments": …}}`."""

    def convert(call: dict[str, Any]) -> dict[str, Any]:
        """Moves a call's name and arguments into `function`; other keys stay beside it."""
        if "function" in call:
            return call
        wiring = {key: call[key] for key in call if key not in ("name", "arguments", "type")}
        return {**wiring, "type": "function", "function": {key: call[key] for key in call if key not in wiring}}

    return _with_calls(messages, convert)


def _with_objects(messages: _Messages, is_refused: bool) -> _Messages | None:
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


def _with_texts(messages: _Messages, is_refused: bool) -> _Messages | None:
    """Returns messages with arguments of calls as JSON text."""

    def convert(number: int, arguments: Any) -> Any:
        """Writes arguments that are not text as JSON."""
        return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)

    return _with_arguments(messages, convert)


def _with_joined_parts(messages: _Messages, is_refused: bool) -> _Messages | None:
    """Returns messages whose contents are text, their parts joined; a part that is thinking becomes reasoning."""
    if not any(isinstance(message.get("content"), list | dict) for message in messages):
        return None
    return [_joined(number, message) for number, message in enumerate(messages)]


_FORMS: tuple[Callable[[_Messages, bool], _Messages | None], ...] = (
    _without_nulls,
    _with_empty_contents,
    _with_tool_roles,
    _with_functions,
    _with_objects,
    _with_texts,
    _with_joined_parts,
)
"""Conversions that `fit` tries, in this order. Each takes messages, and whether the template refused all forms so far;
it returns None if it would change nothing.
"""


def _with_calls(messages: _Messages, convert: Callable[[dict[str, Any]], dict[str, Any]]) -> _Messages | None:
    """Returns messages with every call converted; None if nothing changes."""
    changed = [
        {**message, "tool_calls": [convert(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]
    return None if changed == messages else changed


def _with_arguments(messages: _Messages, convert: Callable[[int, Any], Any]) -> _Messages | None:
    """Returns messages with the arguments of every call converted; None if nothing changes."""
    changed = [
        {**message, "tool_calls": [_other_arguments(number, call, convert) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for number, message in enumerate(messages)
    ]
    return None if changed == messages else changed


def _other_arguments(number: int, call: dict[str, Any], convert: Callable[[int, Any], Any]) -> dict[str, Any]:
    """Returns a call with its arguments converted, whether they are in `function` or in the call itself."""
    if isinstance(call.get("function"), Mapping):
        return {**call, "function": _other_arguments(number, call["function"], convert)}
    return {**call, "arguments": convert(number, call["arguments"])} if "arguments" in call else call


def _joined(number: int, message: dict[str, Any]) -> dict[str, Any]:
    """Returns a message whose content is text; a ValueError if a part is neither text nor thinking."""
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
    reasoning = "".join(thoughts)
    named = {"thinking": reasoning, "reasoning_content": reasoning} if thoughts else {}
    return {**named, **message, "content": "".join(texts)}
