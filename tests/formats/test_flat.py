"""Flat token files against plain bytes: layout, dtype from sizes, validation, pickling."""

import multiprocessing
import pickle
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packhorse.formats import FlatTokens, write_flat_tokens


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """Three sequences: [1, 2, 3], [], [4, 5]."""
    path = tmp_path / "x.bin"
    path.write_bytes(struct.pack("<5H", 1, 2, 3, 4, 5))
    (tmp_path / "x.bin.boundaries").write_bytes(struct.pack("<3q", 3, 3, 5))
    return path


def test_reads_what_the_layout_says(flat: Path) -> None:
    for path in (flat, str(flat), f"{flat}.boundaries"):
        tokens = FlatTokens(path)
        assert len(tokens) == 3
        assert tokens.dtype == np.uint16
        assert tokens.lengths.tolist() == [3, 0, 2]
        assert tokens.lengths.dtype == np.int32
        assert [tokens.read(i).tolist() for i in range(3)] == [[1, 2, 3], [], [4, 5]]
        assert tokens.read(2, 1, 1).tolist() == [5]
        assert not tokens.read(0).flags.owndata


def test_slices_outside_are_refused(flat: Path) -> None:
    tokens = FlatTokens(flat)
    with pytest.raises(ValueError, match="sequence 0 has 3 tokens"):
        tokens.read(0, 1, 3)
    for index in (-1, 3):
        with pytest.raises(IndexError, match=r"\[0, 3\)"):
            tokens.read(index)


@pytest.mark.parametrize(
    ("tokens", "boundaries", "dtype", "message"),
    [
        (b"\0" * 10, struct.pack("<3q", 3, 3, 5)[:-1], None, "not a multiple of 8"),
        (b"\0" * 10, struct.pack("<3q", 3, 2, 5), None, "boundary 1 is below"),
        (b"\0" * 10, struct.pack("<2q", -1, 5), None, "boundary 0 is below"),
        (b"\0" * 9, struct.pack("<q", 5), None, "9 bytes, but .* ends at 5 tokens"),
        (b"\0" * 10, struct.pack("<q", 4), None, "uint16 or uint32"),
        (b"\0" * 10, b"", None, "ends at 0 tokens"),
        (b"\0" * 10, struct.pack("<q", 5), "uint32", "as uint32"),
        (b"\0" * 10, struct.pack("<q", 5), "int64", "uint16 or uint32"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    tmp_path: Path, tokens: bytes, boundaries: bytes, dtype: str | None, message: str
) -> None:
    (tmp_path / "x.bin").write_bytes(tokens)
    (tmp_path / "x.bin.boundaries").write_bytes(boundaries)
    with pytest.raises(ValueError, match=message):
        FlatTokens(tmp_path / "x.bin", dtype=dtype)


@pytest.mark.parametrize("missing", ["x.bin", "x.bin.boundaries"])
def test_a_missing_file_is_named(flat: Path, missing: str) -> None:
    (flat.parent / missing).unlink()
    with pytest.raises(FileNotFoundError, match=missing):
        FlatTokens(flat)


@given(
    sequences=st.lists(st.lists(st.integers(0, 65_535), max_size=30), max_size=20),
    dtype=st.sampled_from([np.uint16, np.uint32]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_what_is_written_is_read(tmp_path: Path, sequences: list[list[int]], dtype: type) -> None:
    path = tmp_path / "x.bin"
    assert write_flat_tokens(path, sequences, dtype, overwrite=True) == len(sequences)
    flat = [token for sequence in sequences for token in sequence]
    assert path.read_bytes() == struct.pack(f"<{len(flat)}{'H' if dtype is np.uint16 else 'I'}", *flat)
    tokens = FlatTokens(path)
    if flat:
        assert tokens.dtype == dtype
    assert [tokens.read(i).tolist() for i in range(len(tokens))] == sequences


@pytest.mark.parametrize(
    ("sequence", "message"),
    [([65_536], r"outside \[0, 65535\]"), ([-1], "outside"), ([0.5], "float64"), ([[1]], "shape \\(1, 1\\)")],
)
def test_what_is_no_sequence_is_refused_and_leaves_nothing(tmp_path: Path, sequence: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_flat_tokens(tmp_path / "x.bin", [[1], sequence], np.uint16)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_output_is_refused_and_a_failed_overwrite_keeps_it(flat: Path) -> None:
    def broken() -> Iterator[list[int]]:
        yield [9]
        raise RuntimeError("reader broke")

    with pytest.raises(FileExistsError, match=r"x\.bin"):
        write_flat_tokens(flat, [[9]], np.uint16)
    with pytest.raises(RuntimeError, match="reader broke"):
        write_flat_tokens(flat, broken(), np.uint16, overwrite=True)
    assert FlatTokens(flat).read(0).tolist() == [1, 2, 3]
    assert sorted(path.name for path in flat.parent.iterdir()) == ["x.bin", "x.bin.boundaries"]


def test_pickle_carries_paths_and_not_tokens(tmp_path: Path) -> None:
    write_flat_tokens(tmp_path / "x.bin", [[1, 2, 3]] * 5000, np.uint16)
    tokens = FlatTokens(tmp_path / "x.bin")
    tokens.read(0)
    pickled = pickle.dumps(tokens)
    assert len(pickled) < 1000
    assert pickle.loads(pickled).read(4999).tolist() == [1, 2, 3]
    write_flat_tokens(tmp_path / "x.bin", [[9]], np.uint16, overwrite=True)
    with pytest.raises(ValueError, match="replaced"):
        pickle.loads(pickled).read(0)


def test_reads_in_a_spawned_process(flat: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(FlatTokens.read, (FlatTokens(flat), 2)).tolist() == [4, 5]
