"""Text with origins is the text that a plain string would be, whatever is done with it; and ranges find their tokens.

No rendering is checked against a plain one, so this must hold for every operation.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.sft.messages import TrainedTurns, check_conversation
from packhorse.sft.sequence import token_ranges
from packhorse.sft.template import compile_template
from packhorse.sft.tracing.provenance import Leaf, Traced, joined, joined_with
from packhorse.sft.tracing.trace import Trace

TEXTS = st.text(alphabet="ab \n\t<é", max_size=12)
SEPARATORS = st.text(alphabet="ab \n", min_size=1, max_size=2)

OPERATIONS = {
    "strip": lambda text, sep: text.strip(),
    "strip characters": lambda text, sep: text.strip(sep),
    "lstrip": lambda text, sep: text.lstrip(sep),
    "rstrip": lambda text, sep: text.rstrip(sep),
    "removeprefix": lambda text, sep: text.removeprefix(sep),
    "removesuffix": lambda text, sep: text.removesuffix(sep),
    "split at blanks": lambda text, sep: text.split(),
    "split": lambda text, sep: text.split(sep),
    "split once": lambda text, sep: text.split(sep, 1),
    "split at blanks once": lambda text, sep: text.split(None, 1),
    "rsplit": lambda text, sep: text.rsplit(sep, 1),
    "rsplit at blanks": lambda text, sep: text.rsplit(None, 1),
    "splitlines": lambda text, sep: text.splitlines(),
    "splitlines, ends kept": lambda text, sep: text.splitlines(True),
    "partition": lambda text, sep: list(text.partition(sep)),
    "rpartition": lambda text, sep: list(text.rpartition(sep)),
    "replace": lambda text, sep: text.replace(sep, "<mark>"),
    "replace once": lambda text, sep: text.replace(sep, "", 1),
    "replace nothing": lambda text, sep: text.replace("", sep),
    "join": lambda text, sep: text.join([sep, "x", text]),
    "be joined": lambda text, sep: joined_with(sep, [text, "x", text]),
    "add": lambda text, sep: text + sep + text,
    "be added": lambda text, sep: sep + text,
    "cut": lambda text, sep: text[1:-1] + text[-3:] + text[:2] + text[::-1],
    "characters": lambda text, sep: [*text, *(text[at] for at in range(-len(text), len(text)))],
    "case": lambda text, sep: [text.upper(), text.lower(), text.title(), text.capitalize(), text.casefold()],
    "format": lambda text, sep: [f"{text}!", "{}!".format(text), "%s!" % text, repr(text), str(text)],  # noqa: UP031, UP032
    "ask": lambda text, sep: [str(text.startswith(sep)), str(sep in text), str(text == sep), str(len(text))],
}


def traced(text: str) -> str:
    """The text as a template gets it."""
    trace = Trace([{"role": "user", "content": text}], ())
    content: str = trace.messages[0]["content"]
    return content


def origins(text: str) -> list[tuple[Leaf, int]]:
    """(Leaf, index) of each character that has one."""
    assert type(text) is Traced
    runs = [run for run in text._runs if isinstance(run.source, Leaf) and run.at >= 0]
    return [(run.source, run.at + at) for run in runs for at in range(run.length)]  # type: ignore[misc]


@pytest.mark.parametrize("name", OPERATIONS)
@given(text=TEXTS, sep=SEPARATORS)
def test_an_operation_gives_what_a_plain_string_gives(name: str, text: str, sep: str) -> None:
    operation: Any = OPERATIONS[name]
    made, plain = operation(traced(text), sep), operation(text, sep)
    assert made == plain
    for each in made if isinstance(made, list) else [made]:
        if type(each) is Traced:
            assert sum(run.length for run in each._runs) in (0, len(each))


@given(text=TEXTS, sep=SEPARATORS)
def test_a_character_keeps_its_origin(text: str, sep: str) -> None:
    parts = [part for part in traced(text).split(sep) if part]
    for part in parts:
        assert "".join(leaf.text[at] for leaf, at in origins(part)) == part
    if parts:
        assert "".join(leaf.text[at] for leaf, at in origins(joined(["<", *parts, ">"]))) == "".join(parts)


@pytest.mark.parametrize(
    "expression",
    [
        "m.content | trim ~ '|' ~ m.content | upper",
        "m.content | replace('a', '<b>') | indent(2)",
        "m.content | first ~ m.content | last ~ m.content | reverse",
        "m.content | escape + m.content",
        "m.content + (m.content | escape)",
        "'%s and %s' | format(m.content, 1) ~ '{}'.format(m.content) ~ m.content.format(1)",
        "m | tojson ~ m.items() | list ~ m",
        "[m.content, 'x', m.role] | join(', ') ~ ', '.join([m.content, m.role])",
        "m.content * 2 ~ m.content | length ~ m.content | list",
        "m.content | wordcount ~ m.content | title ~ m.content | truncate(5)",
        "m.missing | default('d') ~ m['content'] ~ m.get('content') ~ m.keys() | list",
        "m.content.split('a') | map('upper') | join('-')",
    ],
)
@pytest.mark.parametrize("content", ["a b", "<a> & é", " {} \n aa ", ""])
def test_a_template_writes_the_same_traced_and_plain(expression: str, content: str) -> None:
    source = f"{{% for m in messages %}}{{% set x %}}[{{{{ {expression} }}}}]{{% endset %}}{{{{ x }}}}{{% endfor %}}"
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": content}]
    chat = check_conversation(messages, TrainedTurns())
    template = compile_template(source)
    assert template.trace(chat, {}).text == template.render(chat.messages, {})


def token_ranges_by_looking_at_all(
    offsets: Sequence[tuple[int, int]], ranges: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The same as `token_ranges`, token by token."""
    begins, ends = np.asarray(offsets, dtype=np.int64).reshape(-1, 2).T
    found: list[tuple[int, int]] = []
    taken = 0
    for begin, end in ranges:
        inside = np.flatnonzero((begins < end) & ((ends > begin) | (begins >= begin)))
        first = max(taken, int(inside[0]) if inside.size else int(np.searchsorted(begins, begin)))
        taken = max(first, int(inside[-1]) + 1 if inside.size else first)
        found.append((first, taken))
    return found


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 3)), max_size=12),
    st.lists(st.integers(0, 30), max_size=6, unique=True),
)
def test_ranges_find_their_tokens(steps: list[tuple[int, int, int]], edges: list[int]) -> None:
    offsets: list[tuple[int, int]] = []
    at = 0
    for gap, length, repeats in steps:  # tokens of one character share its offsets
        offsets += [(at + gap, at + gap + length)] * (repeats if length == 1 else 1)
        at += gap + length
    edges.sort()
    ranges = list(zip(edges[::2], edges[1::2], strict=False))
    assert token_ranges(offsets, ranges) == token_ranges_by_looking_at_all(offsets, ranges)
