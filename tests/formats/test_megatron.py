"""Megatron token files against a plain `struct` oracle: layout, validation, atomic writing, pickling."""

import multiprocessing
import pickle
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from packhorse.formats import MegatronIndex, MegatronTokens, MegatronWriter, megatron_paths, token_dtype


def index_bytes(
    lengths: list[int],
    offsets: list[int],
    documents: list[int],
    *,
    magic: bytes = b"MMIDIDX\0\0",
    version: int = 1,
    code: int = 8,
    modes: bytes = b"",
) -> bytes:
    """The layout as REFERENCE.md words it, field by field."""
    return (
        magic
        + struct.pack("<Q", version)
        + struct.pack("<B", code)
        + struct.pack("<Q", len(lengths))
        + struct.pack("<Q", len(documents))
        + b"".join(struct.pack("<i", length) for length in lengths)
        + b"".join(struct.pack("<q", offset) for offset in offsets)
        + b"".join(struct.pack("<q", document) for document in documents)
        + modes
    )


def _write(prefix: Path, sequences: Iterable[list[int]]) -> None:
    with MegatronWriter(prefix, vocab_size=10, overwrite=True) as writer:
        for sequence in sequences:
            writer.append(sequence)


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """A valid pair of three sequences, one of them empty: [1, 2, 3], [], [4, 5]."""
    (tmp_path / "x.bin").write_bytes(struct.pack("<5H", 1, 2, 3, 4, 5))
    (tmp_path / "x.idx").write_bytes(index_bytes([3, 0, 2], [0, 6, 6], [0, 2, 3]))
    return tmp_path / "x"


def test_reads_what_the_layout_says(pair: Path) -> None:
    tokens = MegatronTokens(pair)
    assert len(tokens) == len(tokens.index) == 3
    assert tokens.dtype == tokens.index.dtype == np.uint16
    assert tokens.lengths.tolist() == [3, 0, 2]
    assert tokens.lengths.dtype == np.int32
    assert tokens.index.offsets.tolist() == [0, 6, 6]
    assert tokens.index.offsets.dtype == np.int64
    assert tokens.index.document_indices.tolist() == [0, 2, 3]
    assert [tokens.read(i).tolist() for i in range(3)] == [[1, 2, 3], [], [4, 5]]
    assert tokens.read(0, 1).tolist() == [2, 3]
    assert tokens.read(0, 1, 1).tolist() == [2]
    assert tokens.read(2, 2).tolist() == []
    assert not tokens.read(0).flags.writeable
    assert not tokens.read(0).flags.owndata


@pytest.mark.parametrize("name", ["x", "x.idx", "x.bin"])
def test_prefix_and_both_files_name_the_same_pair(pair: Path, name: str) -> None:
    assert MegatronTokens(pair.parent / name).read(2).tolist() == [4, 5]
    assert len(MegatronIndex(str(pair.parent / name))) == 3


def test_prefix_may_hold_dots() -> None:
    assert megatron_paths("a/corpus.v1") == (Path("a/corpus.v1.bin"), Path("a/corpus.v1.idx"))


@pytest.mark.parametrize(("index", "start", "length"), [(0, 4, None), (0, 0, 4), (0, 2, 2), (0, -1, 1), (0, 2, -1)])
def test_slice_outside_a_sequence_is_refused(pair: Path, index: int, start: int, length: int | None) -> None:
    with pytest.raises(ValueError, match="sequence 0 has 3 tokens"):
        MegatronTokens(pair).read(index, start, length)


@pytest.mark.parametrize("index", [-1, 3])
def test_unknown_sequence_is_refused(pair: Path, index: int) -> None:
    with pytest.raises(IndexError, match=rf"sequence {index} .*\[0, 3\)"):
        MegatronTokens(pair).read(index)


@pytest.mark.parametrize(("code", "kind"), [(1, "u1"), (2, "i1"), (3, "<i2"), (4, "<i4"), (5, "<i8"), (8, "<u2")])
def test_every_integer_type_is_read(tmp_path: Path, code: int, kind: str) -> None:
    (tmp_path / "x.bin").write_bytes(np.array([7, 100], kind).tobytes())
    (tmp_path / "x.idx").write_bytes(index_bytes([1, 1], [0, np.dtype(kind).itemsize], [0, 1, 2], code=code))
    tokens = MegatronTokens(tmp_path / "x")
    assert [tokens.read(0).tolist(), tokens.read(1).tolist()] == [[7], [100]]


def test_modes_are_allowed(pair: Path) -> None:
    pair.with_suffix(".idx").write_bytes(index_bytes([3, 0, 2], [0, 6, 6], [0, 3], modes=b"\1\0\1"))
    assert MegatronIndex(pair).document_indices.tolist() == [0, 3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes, fewer than the 34"),
        (index_bytes([], [], [0])[:33], "33 bytes, fewer than the 34"),
        (index_bytes([3], [0], [0, 1], magic=b"TNTIDX\0\0\0"), "not a Megatron index"),
        (index_bytes([3], [0], [0, 1], version=2), "version 2"),
        (index_bytes([3], [0], [0, 1], code=0), "unknown dtype code 0"),
        (index_bytes([3], [0], [0, 1], code=9), "unknown dtype code 9"),
        (index_bytes([3], [0], [0, 1])[:-1], "truncated or altered"),
        (index_bytes([3], [0], [0, 1], modes=b"\0\0"), "truncated or altered"),
        (index_bytes([-1], [0], [0, 1]), "sequence 0 has length -1"),
        (index_bytes([3, 1], [0, -2], [0, 2]), "sequence 1 has length 1 and offset -2"),
        (index_bytes([3, 3], [0, 6], [0, 2]), "sequences take 12 bytes, and the .bin has 10: .* truncated"),
        (index_bytes([3, 1], [0, 6], [0, 2]), "sequences take 8 bytes, and the .bin has 10: .* older"),
        (index_bytes([], [], [0]), "0 sequences take 0 bytes, and the .bin has 10"),
        (index_bytes([3, 2], [0, 2**63 - 1], [0, 2]), "sequence 1 begins at byte 9223372036854775807"),
        (index_bytes([3, 2], [0, 4], [0, 2]), "sequence 1 begins at byte 4, and the one before it ends at 6"),
        (index_bytes([3, 1], [0, 8], [0, 2]), "sequence 1 begins at byte 8, and the one before it ends at 6"),
        (index_bytes([3, 2], [4, 0], [0, 2]), "sequence 0 begins at byte 4, and the one before it ends at 0"),
        (index_bytes([3, 2, 0], [0, 6, 0], [0, 3]), "sequence 2 begins at byte 0"),
        (index_bytes([3], [0], []), "document indices must run from 0 to 1; found none"),
        (index_bytes([3], [0], [0]), "from 0 to 1"),
        (index_bytes([3], [0], [1, 1]), "from 0 to 1"),
        (index_bytes([3, 1, 1], [0, 6, 8], [0, 2, 1, 3]), "document index 2 is below"),
    ],
)
def test_a_bad_index_is_refused_with_its_name_and_fault(pair: Path, content: bytes, message: str) -> None:
    pair.with_suffix(".idx").write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        MegatronTokens(pair)
    assert "x.idx" in str(caught.value)


def test_an_index_of_sentences_is_refused_by_whoever_packs(pair: Path) -> None:
    sentences = index_bytes([1, 2, 2], [0, 2, 6], [0, 1, 3])
    pair.with_suffix(".idx").write_bytes(sentences)
    with pytest.raises(ValueError, match=r"x\.idx: document 1 is 2 sequences.*packhorse tokenize --input"):
        MegatronIndex(pair).refuse_sentences()
    pair.with_suffix(".idx").write_bytes(index_bytes([1, 4], [0, 2], [0, 0, 1, 1, 2]))  # two documents are empty
    MegatronIndex(pair).refuse_sentences()


@given(at=st.integers(0, 33), bit=st.integers(0, 7))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_flipped_header_bit_is_noticed(pair: Path, at: int, bit: int) -> None:
    assume(at != 17)  # Another dtype code may be a valid one.
    content = bytearray(index_bytes([3, 0, 2], [0, 6, 6], [0, 2, 3]))
    content[at] ^= 1 << bit
    path = pair.with_name("flipped.idx")
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"flipped\.idx"):
        MegatronIndex(path)


@pytest.mark.parametrize("missing", [".bin", ".idx"])
def test_a_missing_file_is_named(pair: Path, missing: str) -> None:
    pair.with_suffix(missing).unlink()
    with pytest.raises(FileNotFoundError, match=rf"x\{missing}"):
        MegatronTokens(pair)


@given(
    sequences=st.lists(st.lists(st.integers(0, 69_999), min_size=1, max_size=30), max_size=20),
    vocab_size=st.sampled_from([65_499, 65_500, 70_000]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_writer_writes_the_layout(tmp_path: Path, sequences: list[list[int]], vocab_size: int) -> None:
    sequences = [[token % vocab_size for token in sequence] for sequence in sequences]
    with MegatronWriter(tmp_path / "x", vocab_size=vocab_size, overwrite=True) as writer:
        for sequence in sequences:
            writer.append(sequence)
    kind, code, size = ("H", 8, 2) if vocab_size < 65_500 else ("i", 4, 4)
    flat = [token for sequence in sequences for token in sequence]
    lengths = [len(sequence) for sequence in sequences]
    offsets = [size * sum(lengths[:i]) for i in range(len(lengths))]
    assert (tmp_path / "x.bin").read_bytes() == struct.pack(f"<{len(flat)}{kind}", *flat)
    documents = list(range(len(sequences) + 1))
    assert (tmp_path / "x.idx").read_bytes() == index_bytes(lengths, offsets, documents, code=code)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.bin", "x.idx"]
    tokens = MegatronTokens(tmp_path / "x")
    assert [tokens.read(i).tolist() for i in range(len(tokens))] == sequences


def test_writer_mixes_sequences_below_and_above_its_buffer(tmp_path: Path) -> None:
    sequences = [np.arange(n) % 1000 for n in (5, 300_000, 7, 200_000, 100_000, 1)]
    with MegatronWriter(tmp_path / "x", vocab_size=1000) as writer:
        for sequence in sequences:
            writer.append(sequence)
        assert (len(writer), writer.num_tokens) == (6, 600_013)
    tokens = MegatronTokens(tmp_path / "x")
    for i, sequence in enumerate(sequences):
        np.testing.assert_array_equal(tokens.read(i), sequence)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "shape \\(0,\\)"),
        ([[1]], "shape \\(1, 1\\)"),
        ([1.0], "float64"),
        ([3, 10], "token id 10"),
        ([-1, 3], "token id -1"),
    ],
)
def test_writer_refuses_what_is_no_sequence(tmp_path: Path, tokens: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _write(tmp_path / "x", [[1], tokens])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("existing", ["x.bin", "x.idx"])
def test_writer_refuses_an_existing_output(tmp_path: Path, existing: str) -> None:
    (tmp_path / existing).write_bytes(b"old")
    with pytest.raises(FileExistsError, match=existing):
        MegatronWriter(tmp_path / "x", vocab_size=10)
    assert [path.name for path in tmp_path.iterdir()] == [existing]


def test_an_exception_while_overwriting_leaves_the_old_files(pair: Path) -> None:
    def broken() -> Iterator[list[int]]:
        yield [9]
        raise RuntimeError("reader broke")

    with pytest.raises(RuntimeError, match="reader broke"):
        _write(pair, broken())
    assert MegatronTokens(pair).read(0).tolist() == [1, 2, 3]
    assert sorted(path.name for path in pair.parent.iterdir()) == ["x.bin", "x.idx"]


@pytest.mark.parametrize("vocab_size", [0, -1, 2**31 + 1])
def test_vocabularies_without_a_type_are_refused(vocab_size: int) -> None:
    with pytest.raises(ValueError, match="vocab_size"):
        token_dtype(vocab_size)


def test_an_empty_pair_has_no_sequences(tmp_path: Path) -> None:
    with MegatronWriter(tmp_path / "x", vocab_size=10):
        pass
    tokens = MegatronTokens(tmp_path / "x")
    assert len(tokens) == 0
    assert tokens.lengths.tolist() == []
    assert tokens.index.document_indices.tolist() == [0]


def test_pickle_carries_paths_and_not_tokens(tmp_path: Path) -> None:
    with MegatronWriter(tmp_path / "x", vocab_size=10) as writer:
        for _ in range(5000):
            writer.append([1, 2, 3])
    tokens = MegatronTokens(tmp_path / "x")
    tokens.read(0)
    pickled = pickle.dumps(tokens)
    assert len(pickled) < 1000
    assert pickle.loads(pickled).read(4999).tolist() == [1, 2, 3]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_reads_in_another_process(pair: Path, method: str) -> None:
    tokens = MegatronTokens(pair)
    tokens.read(0)
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(MegatronTokens.read, (tokens, 2)).tolist() == [4, 5]


def test_files_replaced_behind_a_pickle_are_noticed(pair: Path) -> None:
    pickled = pickle.dumps(MegatronTokens(pair))
    with MegatronWriter(pair, vocab_size=10, overwrite=True) as writer:
        writer.append([9])
    revived = pickle.loads(pickled)
    for _ in range(2):
        with pytest.raises(ValueError, match="replaced"):
            revived.read(0)
