"""`fit`: renders a conversation in the form that its template reads.

Owns choosing the form. A template gets a conversation as it is; another form is tried only if the template refuses it,
writes null as a word, encodes arguments twice, or leaves a content or a call out. Leaves converting messages to
`sft.forms.template_forms`, and reporting what is missing in the end to `sft.unused`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from packhorse.sft.forms.template_forms import TEMPLATE_FORMS, Messages
from packhorse.sft.messages import Conversation
from packhorse.sft.template import ChatTemplate, TemplateRefusal, TracedText
from packhorse.sft.tracing.provenance import Dump, Leaf, placed
from packhorse.sft.unused import Shown, has_text


class Fitted(NamedTuple):
    """A conversation in one form, and its text."""

    chat: Conversation
    traced: TracedText
    shown: Shown
    """Which leaves came out in the text."""


class _Faults(NamedTuple):
    """The faults of a form, the worst kind first, so that they compare as forms do."""

    garbled: int
    """1 if null was written as a word or arguments were encoded twice, else 0."""
    contents: int
    """Contents that were left out."""
    calls: int
    """Texts of calls that were left out."""


_REFUSED = _Faults(garbled=2, contents=0, calls=0)
"""Faults of a form that the template refuses; compares as more than those of any other form."""


def fit(template: ChatTemplate, chat: Conversation, variables: Mapping[str, Any]) -> Fitted:
    """Renders a conversation in the form with the fewest faults, and returns that form and its text.

    Forms build on each other: each of `TEMPLATE_FORMS` is applied to the best form so far, and stays if it has fewer
    faults.

    Raises:
        TemplateRefusal: the template refuses every form.
        ValueError: the conversation cannot be converted to a form that the template might need.
    """
    best, refusal = chat, None
    fitted: Fitted | None = None  # the best form with its text; None while the template refuses every form
    faults = _REFUSED
    try:
        fitted = _rendered(template, chat, variables)
        faults = _faults(fitted)
    except TemplateRefusal as error:
        refusal = error
    for form in TEMPLATE_FORMS:
        if not any(faults):
            break
        if form.is_for_refused and fitted is not None:
            continue
        messages = form.convert(best.messages)
        if messages is None:
            continue
        tried = replace(best, messages=messages)
        try:
            tried_fitted = _rendered(template, tried, variables)
        except TemplateRefusal:
            if fitted is None:  # a refused form stays: a later form may remove what is refused in it
                best = tried
            continue
        tried_faults = _faults(tried_fitted)
        if tried_faults < faults:
            best, fitted, faults = tried, tried_fitted, tried_faults
    if fitted is None:
        assert refusal is not None
        raise refusal
    return fitted


def _rendered(template: ChatTemplate, chat: Conversation, variables: Mapping[str, Any]) -> Fitted:
    """Renders a conversation in the form that it has; raises a TemplateRefusal if the template refuses it."""
    traced = template.trace(chat, variables)
    return Fitted(chat, traced, Shown(template, chat, variables, traced))


def _faults(fitted: Fitted) -> _Faults:
    """Counts a form's faults."""
    chat, traced, shown = fitted
    contents = _contents_left_out(chat, traced, shown)
    contents += sum(not shown.changes(others) for others in _without_objects(chat.messages))
    calls = sum(_is_of_call(leaf) and not shown.has(leaf) for leaf in traced.trace.leaves)
    is_garbled = shown.has_text_as_json or _writes_null(chat, traced)
    return _Faults(garbled=int(is_garbled), contents=contents, calls=calls)


def _contents_left_out(chat: Conversation, traced: TracedText, shown: Shown) -> int:
    """Counts messages with a content of which nothing came out, or that was written as Python writes it."""
    came_out: dict[int, bool] = {}  # message → whether some of its content came out
    for leaf in traced.trace.leaves:
        if leaf.message is None:
            continue
        # Of contents that are text, a form changes only those of functions, whose role it changes.
        if leaf.path == ("content",) and chat.messages[leaf.message]["role"] == "function":
            came_out[leaf.message] = shown.has(leaf)
        elif len(leaf.path) > 1 and leaf.path[0] == "content" and leaf.path[-1] != "type":
            is_shown = bool(leaf.text.strip()) and shown.has(leaf) and id(leaf) not in shown.as_python
            # Other texts of a part, such as an image's URL, count only if they came out.
            is_text = not isinstance(leaf.path[1], int) or leaf.path[-1] in ("text", "thinking", "reasoning")
            if is_shown or (is_text and leaf.text.strip()):
                came_out[leaf.message] = came_out.get(leaf.message, False) or is_shown
    as_python = [run.source.value for run in traced.runs if isinstance(run.source, Dump) and run.source.is_python]
    return sum(
        not came_out.get(number, True) or any(value is message.get("content") for value in as_python)
        for number, message in enumerate(traced.trace.messages)
    )


def _is_of_call(leaf: Leaf) -> bool:
    """Returns whether a text is the name of a function that a message calls, or in its arguments."""
    if leaf.message is None or len(leaf.path) < 2 or leaf.path[0] != "tool_calls":
        return False
    return "arguments" in leaf.path or leaf.path[-1] == "name"


def _writes_null(chat: Conversation, traced: TracedText) -> bool:
    """Returns whether a content that is null was written as the word None."""
    nulls = [number for number, message in enumerate(chat.messages) if message.get("content", "") is None]
    return bool(nulls) and any(
        run.source is None and run.writer in nulls and "None" in traced.text[begin : begin + run.length]
        for begin, run in placed(traced.runs)
    )


def _without_objects(messages: Messages) -> Iterator[Messages]:
    """Yields the messages with one content emptied, for each content that is an object and holds no text.

    Such a content has no leaf to follow. If emptying it changes nothing, the template left it out.
    """
    for number, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, dict) and content and not has_text(content):
            yield [*messages[:number], {**message, "content": {}}, *messages[number + 1 :]]
