"""Undoing an over-length policy: the lengths that a folder was prepared from, whatever became of them."""

import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.flat_words import prepare

from packhorse.analysis import fit, lengths_before, rule_of
from packhorse.dataset import OverLength, open_prepared


@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=40),
    policy=st.sampled_from(["drop", "truncate", "split"]),
    align=st.sampled_from([1, 1, 4]),
    extra=st.integers(0, 3),
)
@settings(max_examples=40)
def test_a_folder_knows_the_lengths_it_was_prepared_from(
    lengths: list[int], policy: OverLength, align: int, extra: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        pq.write_table(pa.table({"n": [*lengths, 1]}), Path(name) / "x.parquet")
        prepare(
            Path(name) / "x.parquet",
            length_column="n",
            max_seq_len=24,
            output=Path(name) / "set",
            over_length=policy,
            align=align,
            extra_tokens=extra,
            progress=False,
        )
        dataset = open_prepared(Path(name) / "set")
        before, rule = lengths_before(dataset), rule_of(dataset)
    expected = Counter([*lengths, 1])
    if align == 1:
        assert before == expected
    rooms = Counter(dict.fromkeys(map(rule.room, expected), 0))
    for length, count in expected.items():
        rooms[rule.room(length)] += count
    found: Counter[int] = Counter()
    for length, count in before.items():
        found[rule.room(length)] += count
    assert found == rooms  # with alignment the length may be one of a few, its room never
    again: Counter[int] = Counter()
    for length, count in fit(before, rule.longest, policy).items():
        again[rule.room(length)] += count
    assert again == dataset.counts


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        ("error", {4: 3, 10: 2}),
        ("truncate", {4: 3, 10: 2}),
        ("drop", {4: 3}),
        ("split", {4: 3, 10: 4, 5: 1}),  # 25 is 10 + 10 + 5, and 20 is 10 + 10
    ],
)
def test_what_is_too_long_is_treated_as_the_policy_says(policy: OverLength, left: dict[int, int]) -> None:
    assert fit({4: 3, 25: 1, 20: 1}, 10, policy) == left


def test_a_bin_without_room_for_a_token_is_refused() -> None:
    with pytest.raises(ValueError, match="raise max_seq_len"):
        fit({3: 1}, 0, "split")
