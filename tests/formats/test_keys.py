"""Keys as people write them: shown keys read back, and a bare whole number is always an id."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.formats.keys import MOST_KEY_BYTES, ids_and_keys, read_key, shown_key

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)


@given(st.lists(texts), st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_what_is_shown_is_read_back(keys, ids):
    text = "\n".join([*map(shown_key, keys), *map(str, ids)])
    assert ids_and_keys(text, "x") == (ids, keys)


@given(texts)
def test_a_shown_key_is_one_printable_line(key):
    shown = shown_key(key)
    assert shown.isprintable()
    assert read_key(shown) == key


def test_urls_keep_commas_fragments_and_spaces_inside():
    url = "https://example.org/a,b?c=1, 2#part"
    assert ids_and_keys(f"# ours\n17,4 # two\n  {url}\r\n", "x") == ([17, 4], [url])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"a', 'line 1: "a begins with a quote'),
        ('1\n[]\n"', "line 3"),
        ('""', "an empty text is not a key"),
        ('"\\ud800"', "is not a key: UTF-8 cannot write it"),
        ("x" * (MOST_KEY_BYTES + 1), "8,193 bytes"),
        ("ä" * 4097, "8,194 bytes"),
    ],
)
def test_what_is_no_key_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        ids_and_keys(text, "x")
