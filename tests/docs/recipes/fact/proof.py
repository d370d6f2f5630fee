"""Rows, groups and versions that grew have the fact, and a client sees it; an earlier release's folder has none."""

import sys
from pathlib import Path

import numpy as np

from packhorse.client import connect
from packhorse.dataset import PlanOptions
from packhorse.prepare import Grouping, prepare

root = Path(sys.argv[1])
LENGTHS = np.array([1, 3, 1, 4, 6, 1])
NUM_LONE = 3


def prepared(name, lengths, **options):
    return prepare(lengths=lengths, output=root / name, plan=PlanOptions(max_seq_len=8), **options).lone_tokens


assert prepared("rows", LENGTHS) == NUM_LONE
assert prepared("rows", LENGTHS, append=True) == 2 * NUM_LONE
assert prepared("groups", LENGTHS, grouping=Grouping(size=2)) == NUM_LONE
assert prepared("groups", LENGTHS, grouping=Grouping(size=2), append=True) == 2 * NUM_LONE
assert prepared("none", LENGTHS[LENGTHS > 1]) == 0
with connect(f"embedded:{root}") as client:
    assert client.get_dataset("rows").lone_tokens == client.get_dataset("groups").lone_tokens == 2 * NUM_LONE
    assert client.get_dataset("none").lone_tokens == 0
