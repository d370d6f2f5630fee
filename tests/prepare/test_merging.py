"""Merging runs against a plain oracle, wherever ranges are cut; and that no two tasks write to one page."""

import tempfile
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.dataset import create_array
from packhorse.prepare import _merging
from packhorse.prepare._merging import Files, cut_merges, merge_task
from packhorse.prepare.duplicates import cut_chunks, find_duplicate
from packhorse.wire import ids_sum

ROOMS = 4


@st.composite
def entries(draw: st.DrawFn) -> list[list[tuple[int, int, int]]]:
    """Runs of (room, id, first token), sorted; an id is in one run only, and may have several first tokens there."""
    low, high = draw(st.sampled_from([(0, 40), (0, 2**32 - 1), (-(2**63), 2**63 - 1)]))
    ids = draw(st.lists(st.integers(low, high), min_size=1, max_size=80, unique=True))
    runs: list[list[tuple[int, int, int]]] = [[] for _ in range(draw(st.integers(1, 4)))]
    for identity in ids:
        room = draw(st.integers(0, ROOMS - 1))
        pieces = draw(st.sampled_from([1, 1, 3]))
        run = draw(st.integers(0, len(runs) - 1))
        runs[run] += [(room, identity, 7 * piece) for piece in range(pieces)]
    return [sorted(run) for run in runs]


def edges_of(runs: list[list[tuple[int, int, int]]]) -> np.ndarray:
    edges = np.zeros((len(runs), ROOMS + 1), dtype=np.int64)
    for row, run in zip(edges, runs, strict=True):
        row[1:] = np.cumsum(np.bincount([room for room, _, _ in run], minlength=ROOMS))
    return edges


@settings(max_examples=150)
@given(entries(), st.sampled_from([16, 64, 1 << 16]))
def test_ranges_of_any_size_make_the_sorted_whole(runs: list[list[tuple[int, int, int]]], page_bytes: int) -> None:
    expected = sorted(entry for run in runs for entry in run)
    ids = [identity for _, identity, _ in expected]
    dtype = "uint32" if min(ids) >= 0 and max(ids) < 2**32 else "int64"
    with tempfile.TemporaryDirectory() as name, mock.patch.object(_merging, "PAGE_BYTES", page_bytes):
        folder = Path(name)
        files: list[Files] = []
        for number, run in enumerate(runs):
            np.save(folder / f"{number}.npy", np.array([identity for _, identity, _ in run], dtype=dtype))
            np.save(folder / f"{number}-starts.npy", np.array([first for _, _, first in run], dtype=np.uint32))
            files.append(Files(str(folder / f"{number}.npy"), str(folder / f"{number}-starts.npy")))
        create_array(folder / "pools.npy", dtype, (len(expected),))
        create_array(folder / "starts.npy", "uint32", (len(expected),))
        edges = edges_of(runs)
        edges = edges[:, [True, *(edges.sum(axis=0)[1:] > edges.sum(axis=0)[:-1])]]  # rooms that there are
        sums = [0, 0]
        for file, writes in (("pools.npy", "ids"), ("starts.npy", "first_tokens")):
            tasks = list(cut_merges(files, edges, str(folder / file), writes=writes, sort=True, workers=2))  # type: ignore[arg-type]
            for task in reversed(tasks):
                assert (task.first_entry == 0) or (
                    128 + task.first_entry * np.load(folder / file).itemsize
                ) % page_bytes == 0
                sums = [a + b for a, b in zip(sums, merge_task(task).sums, strict=True)]
        assert np.load(folder / "pools.npy").tolist() == ids
        assert np.load(folder / "starts.npy").tolist() == [first for _, _, first in expected]
        firsts = np.array([first for _, _, first in expected])
        assert tuple(total % 2**64 for total in sums) == ids_sum(np.array(ids, dtype=np.int64), firsts)


@pytest.mark.parametrize("is_list", [False, True])
def test_runs_that_follow_each_other_are_laid_end_to_end(tmp_path: Path, is_list: bool) -> None:
    """Rows by number: nothing is compared, whatever the ids."""
    parts = [np.arange(50), np.arange(50, 1000), np.arange(1000, 1003)]
    files: list[Files] = []
    for number, part in enumerate(parts):
        values = np.stack([part, part + 5], axis=1) if is_list else part
        np.save(tmp_path / f"{number}.npy", values.astype(np.int64))
        files.append(Files(str(tmp_path / f"{number}.npy"), None))
    edges = np.array([[0, len(part)] for part in parts])
    shape = (1003, 2) if is_list else (1003,)
    create_array(tmp_path / "out.npy", "int64", shape)
    with mock.patch.object(_merging, "PAGE_BYTES", 256):
        tasks = list(
            cut_merges(
                files, edges, str(tmp_path / "out.npy"), writes="over" if is_list else "ids", sort=False, workers=1
            )
        )
        assert len(tasks) > 5
        for task in tasks:
            merge_task(task)
    found = np.load(tmp_path / "out.npy")
    assert np.array_equal(found[:, 0] if is_list else found, np.arange(1003))
    assert not is_list or np.array_equal(found[:, 1], np.arange(1003) + 5)


def test_runs_of_another_type_are_widened(tmp_path: Path) -> None:
    """As where a dataset of uint32 ids grows by ids beyond them."""
    np.save(tmp_path / "a.npy", np.arange(300, dtype=np.uint32) * 3)
    np.save(tmp_path / "b.npy", np.array([-7, 4, 2**40], dtype=np.int64))
    create_array(tmp_path / "out.npy", "int64", (303,))
    files = [Files(str(tmp_path / f"{name}.npy"), None) for name in "ab"]
    with mock.patch.object(_merging, "PAGE_BYTES", 128):
        edges = np.array([[0, 300], [0, 3]])
        for task in cut_merges(files, edges, str(tmp_path / "out.npy"), writes="ids", sort=True, workers=1):
            merge_task(task)
    assert np.load(tmp_path / "out.npy").tolist() == sorted([*range(0, 900, 3), -7, 4, 2**40])


@settings(max_examples=150)
@given(
    st.lists(
        st.lists(st.integers(-20, 60) | st.sampled_from([-(2**63), 2**63 - 1, 2**32]), min_size=1, max_size=15),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 8),
)
def test_windows_find_the_smallest_duplicate(segments: list[list[int]], chunk_ids: int) -> None:
    ids = [identity for segment in segments for identity in sorted(segment)]
    edges = np.cumsum([0, *map(len, segments)]).astype(np.int64)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "pools.npy")
        np.save(path, np.array(ids, dtype=np.int64))
        chunks = list(cut_chunks(path, edges, min(ids), max(ids), chunk_ids))
        found = [duplicate for chunk in chunks if (duplicate := find_duplicate(chunk)) is not None]
    assert all(a.high < b.low for a, b in pairwise(chunks))
    for chunk in chunks:
        assert chunk.num_ids == sum(chunk.low <= identity <= chunk.high for identity in ids)
        assert chunk.num_ids <= chunk_ids or chunk.low == chunk.high
    repeated = sorted({identity for identity in ids if ids.count(identity) > 1})
    assert found[:1] == repeated[:1]
    assert set(found) <= set(repeated)
