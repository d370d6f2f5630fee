"""Chat templates, as Hugging Face's tokenizers carry them.

Owns compiling a template and rendering a conversation with it, plainly, or traced to know where each character comes
from. Leaves Jinja's environments to `sft.tracing.environment`, and finding turns in the text to `sft.turns`. This
module needs jinja2, so it is imported when the first template is used.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.meta
import jinja2.nodes

from packhorse.sft.messages import Conversation
from packhorse.sft.tracing.environment import TRACE, follow, plain_environment, tracing_environment
from packhorse.sft.tracing.provenance import Run
from packhorse.sft.tracing.trace import Trace

_SPECIAL_TOKEN_NAMES = frozenset({"bos_token", "eos_token"})
"""Variables of a template that only the tokenizer can fill in."""


class TemplateRefusal(ValueError):  # noqa: N818 - it is the template that refuses
    """A template cannot be compiled, or does not render a conversation."""


@dataclass(frozen=True, slots=True)
class TracedText:
    """The text of a conversation, and where its characters come from."""

    text: str
    """All of the text."""
    runs: tuple[Run, ...]
    """Ranges of characters with one origin each, in the order of the text."""
    trace: Trace
    """The record of the rendering; `runs` refer to its leaves."""


class ChatTemplate:
    """A compiled chat template. Make one with `compile_template`, which caches."""

    def __init__(self, source: str) -> None:
        """Compiles the text; raises a TemplateRefusal if it is not a Jinja template."""
        try:
            plain, tracing = plain_environment(), tracing_environment()
            tree, traced_tree = plain.parse(source), tracing.parse(source)
            names = jinja2.meta.find_undeclared_variables(tree)
            # `tracing_environment` makes such a filter of every generation block.
            self.has_generation = any(
                block.filter.name == "_generated" for block in traced_tree.find_all(jinja2.nodes.FilterBlock)
            )
            """Whether `{% generation %}` blocks mark the model's text."""
            self._plain, self._tracing = plain.from_string(tree), tracing.from_string(follow(traced_tree))
            # Copied once: Jinja would put them together again for each rendering.
            self._plain_globals, self._tracing_globals = dict(self._plain.globals), dict(self._tracing.globals)
        except jinja2.TemplateError as error:
            raise TemplateRefusal(f"the chat template is not a Jinja template: {error}") from None
        self.special_token_names = frozenset(names) & _SPECIAL_TOKEN_NAMES
        """Names of special tokens that the template reads."""
        self.words = frozenset(re.findall(r"\w+", source))
        """Every word of the template's text; a key that is not among them is never read."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        *,
        add_generation_prompt: bool = False,
    ) -> str:
        """Returns the text of a conversation.

        Args:
            messages: the messages.
            variables: the template's other variables: tools, special tokens and options.
            add_generation_prompt: whether the text ends with the begin of a turn of the model.

        Raises:
            TemplateRefusal: the template raises an error.
        """
        try:
            given = {**self._plain_globals, **_given(messages, variables, add_generation_prompt=add_generation_prompt)}
            return "".join(self._plain.root_render_func(self._plain.new_context(given, shared=True)))
        except Exception as error:  # A template is somebody else's program and may raise anything.
            raise _refusal(error) from error

    def trace(self, chat: Conversation, variables: Mapping[str, Any]) -> TracedText:
        """Returns the same text as `render` without a generation prompt, with the origins of its characters.

        Raises:
            TemplateRefusal: the template raises an error, or traced strings do not work in it as plain ones do.
        """
        trace = Trace(chat.messages, chat.own, variables.get("tools"))
        given = _given(trace.messages, {**variables, "tools": trace.tools}, add_generation_prompt=False)
        pieces: list[str] = []
        runs: list[Run] = []
        try:
            context = self._tracing.new_context({**self._tracing_globals, **given, TRACE: trace}, shared=True)
            for piece in self._tracing.root_render_func(context):
                pieces.append(piece)
                trace.write(piece, runs)
        except Exception as error:
            raise _refusal(error) from error
        return TracedText("".join(pieces), tuple(runs), trace)


@lru_cache(maxsize=16)
def compile_template(source: str) -> ChatTemplate:
    """Compiles a template, once for each text; raises a TemplateRefusal if it is not a Jinja template."""
    return ChatTemplate(source)


def _given(
    messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any], *, add_generation_prompt: bool
) -> dict[str, Any]:
    """Returns all variables of a template, as transformers' `apply_chat_template` gives them."""
    return {
        "tools": None,
        "documents": None,
        **variables,
        "messages": messages,
        "add_generation_prompt": add_generation_prompt,
    }


def _refusal(error: Exception) -> TemplateRefusal:
    """Returns the refusal of a template that raised an error."""
    return TemplateRefusal(f"the chat template does not render this conversation: {error}")
