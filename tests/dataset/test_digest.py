"""Digests: equal for equal data, and telling what differs otherwise."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.flat_words import prepare

from packhorse.dataset import PARTS, differing_parts
from packhorse.wire import ids_sum

LENGTHS = [5, 3, 8, 8, 1, 2, 2, 7, 4, 6]


def digest(folder: Path, lengths: list[int], ids: list[int], row_group_size: int = 100, **options: Any) -> str:
    path = folder / "x.parquet"
    pq.write_table(pa.table({"n": lengths, "id": ids}), path, row_group_size=row_group_size)
    arguments = {"length_column": "n", "id_column": "id", "max_seq_len": 9, "overwrite": True, **options}
    return prepare(path, output=folder / "out", **arguments).digest


def test_equal_data_has_equal_digests(tmp_path: Path) -> None:
    ids = list(range(10))
    first = digest(tmp_path, LENGTHS, ids)
    assert digest(tmp_path, LENGTHS, ids) == first
    assert digest(tmp_path, LENGTHS, ids, row_group_size=3) == first
    assert digest(tmp_path, LENGTHS[::-1], ids[::-1]) == first
    assert differing_parts(first, first) == []


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"ids": [*range(9), 77]}, ["pools"]),
        ({"options": {"algorithm": "best-fit"}}, ["options"]),
        ({"options": {"over_length": "drop"}}, ["options"]),
        ({"options": {"max_sequences_per_bin": 1}}, ["options", "templates"]),
        ({"options": {"max_seq_len": 20}}, ["options", "templates"]),
        # The last sequence stands behind the same others: the file of ids stays as it was.
        ({"lengths": [5, 3, 8, 8, 1, 2, 2, 7, 4, 5]}, ["counts", "templates"]),
        ({"lengths": [3, 5, 8, 8, 1, 2, 2, 7, 4, 6]}, ["pools"]),
    ],
)
def test_differing_parts_names_what_changed(tmp_path: Path, change: dict[str, Any], parts: list[str]) -> None:
    ids = list(range(10))
    before = digest(tmp_path, LENGTHS, ids)
    after = digest(tmp_path, change.get("lengths", LENGTHS), change.get("ids", ids), **change.get("options", {}))
    assert differing_parts(before, after) == parts
    assert differing_parts(after, before) == parts


@pytest.mark.parametrize("other", ["", "x", "a-b-c", "a-b-c-d-e"])
def test_what_is_no_digest_differs_in_everything(other: str) -> None:
    assert differing_parts("a-b-c-d", other) == list(PARTS)
    assert differing_parts(other, "a-b-c-d") == list(PARTS)


def test_ids_sum_does_not_depend_on_order_type_or_parts() -> None:
    ids = np.random.default_rng(0).permutation(200_000)
    whole = ids_sum(ids)
    assert ids_sum(np.sort(ids)) == whole
    assert ids_sum(ids.astype(np.uint32)) == whole
    parts = [ids_sum(part) for part in np.array_split(ids, 7)]
    assert tuple(sum(column) % 2**64 for column in zip(*parts, strict=True)) == whole
    assert ids_sum(ids[:0]) == (0, 0)


def test_ids_sum_notices_one_id_missing_repeated_or_altered() -> None:
    ids = np.arange(-500, 500)
    seen = {ids_sum(ids), ids_sum(ids[1:]), ids_sum(np.append(ids, 3))}
    for at in range(1000):
        other = ids.copy()
        other[at] += 1
        seen.add(ids_sum(other))
    seen_a, seen_b = zip(*seen, strict=True)
    # One id moved up by 1 makes it equal to its neighbour: all 1,000 multisets differ.
    assert len(seen) == len(set(seen_a)) == len(set(seen_b)) == 1003
