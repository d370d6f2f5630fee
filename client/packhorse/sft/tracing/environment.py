"""Jinja's environments for chat templates: sandboxed, with what transformers' `apply_chat_template` offers templates.

Owns the two environments in which a template is compiled: one that renders, and one that renders the same text and
follows where each character comes from. For the second, `follow` changes a template's tree, so that loops and macros
tell the record which message they are about; it puts in filters whose names begin with an underscore, such as `_enter`.
Leaves compiling templates to `sft.template`, the record of origins to `sft.tracing.trace`, and stand-ins for Python's
own functions to `sft.tracing.sandbox`.

Beyond Jinja, a template may use `tojson`, `raise_exception`, `strftime_now`, loop controls, trimmed blocks, and
`{% generation %}` blocks.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from types import BuiltinMethodType
from typing import Any

import jinja2
import jinja2.ext
import jinja2.filters
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils
import jinja2.visitor

from packhorse.sft.tracing.provenance import Dump, Run, Traced, joined, joined_with, written
from packhorse.sft.tracing.sandbox import SafeDict, SafeNamespace
from packhorse.sft.tracing.trace import Trace

TRACE = "_packhorse_trace"
"""Name of a template's variable that holds the record of a traced rendering."""


def plain_environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """Returns the environment that only renders."""
    return _equipped(_Environment, _Generation)


def tracing_environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """Returns the environment that follows where the text comes from; give it trees that `follow` changed."""
    environment = _equipped(_TracingEnvironment, _TracedGeneration)
    environment.finalize = written
    environment.filters.update(
        {
            "tojson": _traced_json,
            "join": _traced_join,
            "_concat": _concat,
            "_generated": _generated,
            "_begin": _begin,
            "_gathered": _gathered,
            "_enter": _enter,
            "_leave": _leave,
        }
    )
    return environment


def follow(tree: jinja2.nodes.Template) -> jinja2.nodes.Template:
    """Returns a template's tree in which loops and macros say which message they are about."""
    followed: jinja2.nodes.Template = _Follower().visit(tree)
    return followed


def _equipped(
    kind: type[jinja2.sandbox.ImmutableSandboxedEnvironment], generation: type[jinja2.ext.Extension]
) -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """Returns an environment of a class, with the functions that transformers gives to templates."""
    environment = kind(trim_blocks=True, lstrip_blocks=True, extensions=[generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = _tojson
    # `strftime_now` always tells the same time, because renderings of one conversation are compared with each other.
    environment.globals.update(
        raise_exception=_raise_exception, strftime_now=_NOW.strftime, namespace=SafeNamespace, dict=SafeDict()
    )
    return environment


_NOW = datetime.now()
"""When this module was imported."""


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


class _TracedGeneration(_Generation):
    """`{% generation %} … {% endgeneration %}`, whose text is marked as generated, even through macros and `set`."""

    def wrap(self, body: list[jinja2.nodes.Node]) -> list[jinja2.nodes.Node]:
        """Returns the body in a filter that marks what it writes."""
        return [jinja2.nodes.FilterBlock(body, _filter(None, "_generated"))]


_OF_EVERY_DICT = frozenset(dir(dict))
"""Attributes that every dict has, such as `items`."""


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja with a faster `message.key`: Jinja would ask for a Python attribute first, and catch its absence."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Returns what Jinja's own method returns."""
        if type(obj) is dict and attribute not in _OF_EVERY_DICT:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)


class _TracingEnvironment(_Environment):
    """Jinja that keeps the origins of traced text when it joins pieces by itself."""

    concat = staticmethod(joined)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - jinja2's own form
        """Calls an object; `", ".join(…)` of a plain text keeps the origins of what it joins."""
        if type(__obj) is BuiltinMethodType and __obj.__name__ == "join" and type(__obj.__self__) is str:
            return joined_with(__obj.__self__, *args, **kwargs)
        return super().call(__context, __obj, *args, **kwargs)


class _Follower(jinja2.visitor.NodeTransformer):
    """Puts calls of the tracing filters into a tree: into loops and macros, and in place of `~`."""

    def visit_For(self, node: jinja2.nodes.For) -> list[jinja2.nodes.Node]:  # noqa: N802
        """Puts `_enter` before a loop, `_begin` at the begin of each iteration, and `_leave` after the loop."""
        self.generic_visit(node)
        names = [node.target.name] if isinstance(node.target, jinja2.nodes.Name) else _names(node.target)
        node.body = [_does("_begin", _about(names, node.body)), *node.body]
        return [_does("_enter"), node, _does("_leave")]

    def visit_Macro(self, node: jinja2.nodes.Macro) -> jinja2.nodes.Macro:  # noqa: N802
        """Puts `_enter` and `_begin` at a macro's begin, and `_leave` at its end: a call is like one iteration."""
        self.generic_visit(node)
        about = _about([argument.name for argument in node.args], node.body)
        node.body = [_does("_enter"), _does("_begin", about), *node.body, _does("_leave")]
        return node

    def visit_Assign(self, node: jinja2.nodes.Assign) -> jinja2.nodes.Assign:  # noqa: N802
        """Filters what is added to a namespace's variable, as in `{% set ns.text = ns.text ~ "…" %}`, by `_gathered`.

        Such text may be written after the iteration that made it, and may hold no word of the row to tell its message.
        """
        self.generic_visit(node)
        target = node.target
        if isinstance(target, jinja2.nodes.NSRef) and any(
            isinstance(read.node, jinja2.nodes.Name) and (read.node.name, read.attr) == (target.name, target.attr)
            for read in node.find_all(jinja2.nodes.Getattr)
        ):
            value: Any = node.node
            node.node = _filter(value, "_gathered")
        return node

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:  # noqa: N802
        """Replaces `a ~ b` by `_concat`, which keeps origins."""
        self.generic_visit(node)
        return _filter(jinja2.nodes.List(node.nodes), "_concat")


def _about(names: Sequence[str], body: Sequence[jinja2.nodes.Node]) -> list[jinja2.nodes.Expr]:
    """Returns the expressions that show which message an iteration is about.

    These are the iteration's variables, `names`, and the lists from which its body takes an item by one of them, such
    as `messages` in `{% for i in range(n) %}{{ messages[i].content }}`.
    """
    nodes = jinja2.nodes
    whole = nodes.Template(list(body))  # one node, so that it can be searched
    assigned = {name.name for name in whole.find_all(nodes.Name) if name.ctx == "store"}
    lists: dict[str, nodes.Expr] = {}
    for item in whole.find_all(nodes.Getitem):  # such as `messages[i]` or `chat.messages[i]`
        listed = item.node
        variable = listed.node if isinstance(listed, nodes.Getattr) else listed
        if not isinstance(variable, nodes.Name) or not isinstance(item.arg, nodes.Name) or item.arg.name not in names:
            continue
        if variable.name not in assigned:  # what the body assigns has no value yet when the iteration begins
            is_there = nodes.Test(nodes.Name(variable.name, "load"), "defined", [], [], None, None)
            lists[repr(listed)] = nodes.CondExpr(is_there, listed, None)
    return [*(nodes.Name(name, "load") for name in names), *lists.values()]


def _names(target: jinja2.nodes.Node) -> list[str]:
    """Returns the names in a loop's target, such as `key, value`."""
    return [name.name for name in target.find_all(jinja2.nodes.Name)]


def _filter(value: jinja2.nodes.Expr | None, name: str) -> jinja2.nodes.Filter:
    """Returns the expression `value | name`."""
    return jinja2.nodes.Filter(value, name, [], [], None, None)


def _does(name: str, values: Sequence[jinja2.nodes.Expr] = ()) -> jinja2.nodes.Node:
    """Returns a statement that calls a tracing filter with a list of values and writes nothing."""
    return jinja2.nodes.ExprStmt(_filter(jinja2.nodes.List(list(values)), name))


def _trace_of(context: jinja2.runtime.Context) -> Trace:
    """Returns the record of the running rendering."""
    trace: Trace = context.parent[TRACE]  # `parent` holds the variables that the template was given
    return trace


@jinja2.pass_context
def _enter(context: jinja2.runtime.Context, _: list[Any]) -> None:
    """Tells the record that a loop or a macro begins."""
    _trace_of(context).enter()


@jinja2.pass_context
def _leave(context: jinja2.runtime.Context, _: list[Any]) -> None:
    """Tells the record that the innermost loop or macro ends."""
    _trace_of(context).leave()


@jinja2.pass_context
def _begin(context: jinja2.runtime.Context, values: list[Any]) -> None:
    """Tells the record that an iteration begins, with the values that show which message it is about."""
    _trace_of(context).begin(values)


@jinja2.pass_context
def _gathered(context: jinja2.runtime.Context, value: Any) -> Any:
    """Returns a text, or list of texts, marked as made by the running iteration; other values as they are."""
    return _trace_of(context).gathered(value) if isinstance(value, str | list) else value


@jinja2.pass_context
def _generated(context: jinja2.runtime.Context, text: str) -> str:
    """Returns a block's text with all its characters marked as generated."""
    runs: list[Run] = []
    trace = _trace_of(context)
    trace.collect(text, runs)
    return Traced(text, tuple(run._replace(is_generated=True) for run in runs), trace)


def _concat(values: list[Any]) -> str:
    """Joins values as `~` does, and keeps the origins of their characters."""
    return joined(str(written(value)) for value in values)


@jinja2.pass_eval_context
def _traced_join(context: Any, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    """Joins values as Jinja's filter `join` does, and keeps the origins of their characters."""
    if attribute is not None:
        value = map(jinja2.filters.make_attrgetter(context.environment, attribute), value)
    return joined_with(d, map(str, value))


@jinja2.pass_context
def _traced_json(context: jinja2.runtime.Context, value: Any, *args: Any, **options: Any) -> str:
    """Returns a value as JSON whose origin is the whole value."""
    text = _tojson(value, *args, **options)
    return Traced(text, (Run(len(text), Dump(value)),), _trace_of(context))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Returns a value as plain JSON; Jinja's own filter escapes it for web pages."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    """Refuses a conversation, for a template that calls it."""
    raise jinja2.TemplateError(message)
