"""Facts of lengths are the same however the sequences come: in tasks, as groups, and appended."""

from dataclasses import dataclass, fields

import numpy as np
import pytest

from packhorse.dataset import PlanOptions, SequenceFacts
from packhorse.prepare import Grouping, prepare
from packhorse.prepare.counting import LengthFacts

LENGTHS = np.array([5, 3, 1, 4, 6, 2])


def facts(manifest):
    return LengthFacts.of_version(manifest)


def test_the_manifest_has_every_fact():
    assert {each.name for each in fields(LengthFacts)} <= {each.name for each in fields(SequenceFacts)}


@pytest.mark.parametrize("grouping", [None, Grouping(size=2)])
def test_facts_are_those_of_all_sequences_after_every_version(tmp_path, grouping):
    options = {"output": tmp_path / "x", "plan": PlanOptions(max_seq_len=16, align=4), "grouping": grouping}
    expected = LengthFacts.of(LENGTHS, np.ones(len(LENGTHS), dtype=np.int64))
    assert facts(prepare(lengths=LENGTHS, **options)) == expected
    assert facts(prepare(lengths=LENGTHS, **options, append=True)) == expected + expected


def test_a_fact_that_an_earlier_release_did_not_count_stays_unknown():
    @dataclass(frozen=True, kw_only=True)
    class More(LengthFacts):
        later: int | None = 0

    known, unknown = More(own_tokens=3, later=2), More(own_tokens=4, later=None)
    assert known + known == More(own_tokens=6, later=4)
    assert known + unknown == More(own_tokens=7, later=None)
