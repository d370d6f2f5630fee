"""Chat templates: Jinja, sandboxed, as Hugging Face's tokenizers carry them.

Owns compiling and rendering one, and joining parts of a content that it does not know; leaves finding a turn in the
text to `sft.turns`. Imported when the first template is used, since it needs jinja2.

Beyond Jinja, a template may use what transformers' `apply_chat_template` offers, so that it gives the same text:
`tojson`, `raise_exception`, `strftime_now`, loop controls, trimmed blocks, and `{% generation %}` blocks.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils

from packhorse.sft.messages import CLOSE_MARK, OPEN_MARK, Conversation

_SPECIAL_TOKEN_NAMES = frozenset({"bos_token", "eos_token"})


class TemplateRefusal(ValueError):  # noqa: N818 - it is the template that refuses
    """A template cannot be compiled, or does not render a conversation."""


class ChatTemplate:
    """A compiled template. Make one with `compile_template`, which caches."""

    def __init__(self, source: str) -> None:
        """Compiles; a TemplateRefusal where the text is not a Jinja template."""
        try:
            plain, marked = _environment(_Generation), _environment(_MarkedGeneration)
            tree, marked_tree = plain.parse(source), marked.parse(source)
            names = jinja2.meta.find_undeclared_variables(tree)
            self.has_generation = any(
                literal.data == OPEN_MARK for literal in marked_tree.find_all(jinja2.nodes.TemplateData)
            )
            """Whether `{% generation %}` blocks mark the model's text."""
            self._plain, self._marked = plain.from_string(tree), marked.from_string(marked_tree)
        except jinja2.TemplateError as error:
            raise TemplateRefusal(f"the chat template is not a Jinja template: {error}") from None
        self.special_token_names = frozenset(names) & _SPECIAL_TOKEN_NAMES
        """Names of special tokens in it."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        *,
        add_generation_prompt: bool = False,
    ) -> str:
        """Returns the text of a conversation. `variables` are its tools, special tokens and own options.

        Raises:
            TemplateRefusal: the template raises an error.
        """
        return _render(self._plain, messages, variables, add_generation_prompt)

    def render_generation(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
    ) -> tuple[str, list[tuple[int, int]]]:
        """Returns the text, and [begin, end) of its `{% generation %}` blocks, ascending; touching blocks are joined.

        Raises:
            TemplateRefusal: the template raises an error, nests the blocks, or uses them to make other text.
        """
        text = self.render(messages, variables)
        parts: list[str] = []
        blocks: list[tuple[int, int]] = []
        length = 0
        for part in _render(self._marked, messages, variables, False).split(OPEN_MARK):
            inside, mark, after = part.partition(CLOSE_MARK)
            end = length + len(inside)
            if mark and inside:
                begin = blocks.pop()[0] if blocks and blocks[-1][1] == length else length
                blocks.append((begin, end))
            parts += [inside, after]
            length = end + len(after)
        if "".join(parts) != text:
            raise TemplateRefusal(
                "the chat template changes what its {% generation %} blocks write, or nests them; let each block write "
                "straight into the text"
            )
        return text, blocks


@lru_cache(maxsize=16)
def compile_template(source: str) -> ChatTemplate:
    """Compiles a template, once for each text; a TemplateRefusal where it is not a Jinja template."""
    return ChatTemplate(source)


def with_known_contents(template: ChatTemplate, chat: Conversation, variables: Mapping[str, Any]) -> Conversation:
    """Returns a conversation whose contents the template knows: elsewhere the texts of parts are joined.

    Raises:
        ValueError: the template does not know parts, and one is not a text.
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
                "leave it out, or use a template that does"
            )
    return "".join(part["text"] for part in content)


def _render(
    template: jinja2.Template, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any], prompt: bool
) -> str:
    given = {"tools": None, "documents": None, **variables}
    try:
        return template.render(messages=messages, add_generation_prompt=prompt, **given)
    except Exception as error:  # A template is somebody else's program and may raise anything.
        raise TemplateRefusal(f"the chat template does not render this conversation: {error}") from error


class _Generation(jinja2.ext.Extension):
    """`{% generation %} … {% endgeneration %}`, ignored."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own form

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
        """Returns the tag's body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A scope of its own: variables set in a block end with it, as in transformers.
        return jinja2.nodes.Scope(self.wrap(body), lineno=line)

    def wrap(self, body: list[jinja2.nodes.Node]) -> list[jinja2.nodes.Node]:
        """Returns the nodes that replace the tag."""
        return body


class _MarkedGeneration(_Generation):
    """The same with a mark at either end: marks survive macros and captured text, counts of characters do not."""

    def wrap(self, body: list[jinja2.nodes.Node]) -> list[jinja2.nodes.Node]:
        """Returns the body between two marks."""
        return [_literal(OPEN_MARK), *body, _literal(CLOSE_MARK)]


def _literal(text: str) -> jinja2.nodes.Output:
    return jinja2.nodes.Output([jinja2.nodes.TemplateData(text)])


def _environment(generation: type[_Generation]) -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    # One time for all renderings of a template, since they are compared with each other.
    now = datetime.now()
    environment.globals.update(
        raise_exception=_raise_exception, strftime_now=now.strftime, namespace=_Namespace, dict=_Dict()
    )
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models read it; Jinja's own filter writes it for web pages."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


class _Dict:
    """A template's `dict`, without the class and its attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """As `dict.fromkeys`."""
        return dict.fromkeys(*args)


class _Namespace(jinja2.utils.Namespace):
    """Jinja's `namespace`, without access to Python's own attributes."""

    # No `self`, which a template may want as a name.
    def __init__(*args: Any, **kwargs: Any) -> None:
        names = dict(*args[1:], **kwargs)
        for name in names:
            _check_name(name)
        jinja2.utils.Namespace.__init__(args[0], names)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace takes no name that begins with an underscore: {name!r}")
