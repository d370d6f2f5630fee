"""TOML with long lists is read as tomllib reads it, and without tomllib reading the lists."""

import tomllib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from packhorse.dataset.files import _long_lists
from packhorse.dataset.files._long_lists import loads_with_lists


def outcome(loads, text):
    try:
        return loads(text)
    except tomllib.TOMLDecodeError as error:
        return str(error)


ITEMS = (
    "1",
    "-0",
    "17",
    "+4",
    "0x1f",
    "1_000",
    "007",
    "1.5",
    "true",
    '"a"',
    '"a]"',
    "'b'",
    r'"\u00e4"',
    "nan",
    "[2]",
    "{}",
)
SEPARATORS = (", ", ",", ",\n", ", # some\n", " ", ",,")
ENDS = ("]", ",]", "\n]", '] # "end"', "] reason = 1", "")
BEFORE = (
    "",
    "[[redact]]\n",
    "reason = '''\n",
    "# ids = [1]\n",
    "[[redact]]\nids = [1]\n",
    "a = [\n",
    'b = """\n',
    "\r\n",
)
AFTER = ("", "\nreason = 1", "\n[[redact]]\nids = [3, 4]", "\n'''", '\n"""', "\n]", "\nids = 1", "\n[x.ids]\nids = [2]")


@given(
    st.sampled_from(BEFORE),
    st.lists(st.sampled_from(ITEMS), max_size=4),
    st.sampled_from(SEPARATORS),
    st.sampled_from(ENDS),
    st.sampled_from(AFTER),
)
@example("[[redact]]\nids = [1]\n", [], ", ", "\n]", "")
def test_every_text_is_read_as_tomllib_reads_it(before, items, separator, end, after):
    text = f"{before}ids = [{separator.join(items)}{end}{after}"
    expected, got = outcome(tomllib.loads, text), outcome(lambda each: loads_with_lists(each, "ids"), text)
    assert repr(got) == repr(expected)  # nan is not equal to itself


@pytest.mark.parametrize("items", [[*range(5000)], ["a", 1] * 2500])
def test_a_long_list_is_not_read_by_tomllib(items, monkeypatch):
    seen = []
    monkeypatch.setattr(
        _long_lists.tomllib, "loads", lambda text, loads=tomllib.loads: seen.append(text) or loads(text)
    )
    text = f"[[redact]]\nids = {items}\n\n[[redact]]\n  ids=[{', '.join(map(repr, items))}\n] # all\n".replace("'", '"')
    assert loads_with_lists(text, "ids") == {"redact": [{"ids": items}, {"ids": items}]}
    assert len(seen[0]) < 200
