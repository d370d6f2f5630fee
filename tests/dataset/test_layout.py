"""The JSON files beside the pool: what is rendered is read back, anything else is refused."""

import pytest

from packhorse.dataset.json_files import parse_counts, parse_templates, render_counts, render_templates


def test_json_files_survive_a_round_trip() -> None:
    counts = {7: 2, 30: 1, 4: 9}
    assert render_counts(counts) == b'{"4":9,"7":2,"30":1}\n'
    assert parse_counts(render_counts(counts)) == counts
    templates = {(7, 4): 2, (30,): 1, (7,): 3, (7, 4, 1): 1}
    assert render_templates(templates) == b"[[[30],1],[[7,4,1],1],[[7,4],2],[[7],3]]\n"
    assert parse_templates(render_templates(templates)) == templates


DEEP = b"[" * 9999
OTHER_COUNTS = [b"", b"[]", b"1", b'{"a":1}', b'{"1":"2"}', b'{"1":1.5}', b'{"1":null}', b'{"1":true}', b'{"0":1}']
OTHER_TEMPLATES = [
    b"",
    b"{}",
    b"1",
    b"[1]",
    b"[[1,2]]",
    b"[[[1],1.5]]",
    b'[[["1"],1]]',
    b"[[[1],1,1]]",
    b"[[[true],1]]",
]


@pytest.mark.parametrize("data", [*OTHER_COUNTS, b'{"1":-1}', b'{"1":9223372036854775808}', DEEP])
def test_other_counts_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_counts(data)


@pytest.mark.parametrize("data", [*OTHER_TEMPLATES, b"[[[true],1]]", b"[[[0],1]]", b"[[[1],-1]]", DEEP])
def test_other_templates_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_templates(data)
