"""What every source promises, whatever it reads: the same tokens, and errors that name the sequence."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.client.sources import TokenSourceError


def test_gather_and_read_give_the_tokens(sources, sequences, gather, kind):
    ids = [2, 0, 4, 1, 3, 0]
    source, lengths = sources[kind], [len(sequences[i]) for i in ids]
    expected = [sequences[i].tolist() for i in ids]
    for gap in (0, 2):
        assert gather(source, ids, lengths, gap=gap) == expected
    for dtype in (np.int32, np.uint16):
        assert gather(source, ids, lengths, dtype=dtype) == expected
    assert gather(source, [], []) == []
    assert source.read(2).tolist() == sequences[2].tolist()


def test_the_type_of_tokens_is_that_of_what_is_read(sources, kind):
    said = sources[kind].token_dtype
    holds_several = kind in ("parquet_files", "remote_parquet_files", "parquet_decoded")  # files of two types
    if said is not None and not holds_several:
        assert sources[kind].read(0).dtype == said
    is_told = kind.removeprefix("remote_").startswith(("megatron", "flat", "arrow", "parquet", "hf", "stream", "saved"))
    assert (said is not None) == (is_told or kind == "remote")


def test_lengths(sources, sequences, gather, kind):
    lengths = sources[kind].lengths(np.array([4, 0, 1, 4]))
    assert lengths.dtype == np.int64
    assert lengths.tolist() == [300, 5, 1, 300]
    assert gather(sources[kind], [4, 2], [300, 9]) == [sequences[4].tolist(), sequences[2].tolist()]
    assert sources[kind].lengths(np.array([], np.int64)).tolist() == []


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 320), st.none() | st.integers(0, 320)), max_size=5))
def test_read_slices_and_pieces_are_gathered(sources, sequences, gather, slices):
    expected = [sequences[i][start:].tolist()[:length] for i, start, length in slices]
    pieces = [(i, min(start, len(sequences[i])), len(t)) for (i, start, _), t in zip(slices, expected, strict=True)]
    for source in sources.values():
        assert [source.read(i, start, length).tolist() for i, start, length in slices] == expected
        ids, starts, lengths = (list(part) for part in zip(*pieces, strict=True)) if pieces else ([], [], [])
        assert gather(source, ids, lengths, first_tokens=np.array(starts, np.int64)) == expected


@settings(max_examples=60)
@given(data=st.data())
def test_sequences_go_anywhere_in_the_buffer(sources, sequences, data):
    """In any order, some side by side and some apart; the oracle copies one by one."""
    ids = np.array(data.draw(st.lists(st.integers(0, 4), max_size=12)), np.int64)
    gaps = data.draw(st.lists(st.integers(0, 2), min_size=len(ids), max_size=len(ids)))
    places = data.draw(st.permutations(range(len(ids))))
    lengths = np.array([len(sequences[i]) for i in ids], np.int64)
    out_starts = np.zeros(len(ids), np.int64)
    at = 0
    for i, gap in zip(places, gaps, strict=True):
        out_starts[i] = at + gap
        at += gap + int(lengths[i])
    expected = np.full(at, -7)
    for i, start in zip(ids.tolist(), out_starts.tolist(), strict=True):
        expected[start : start + len(sequences[i])] = sequences[i]
    for source in sources.values():
        out = np.full(at, -7)
        source.gather(ids, lengths.astype(np.int32), out, out_starts)
        assert out.tolist() == expected.tolist()


def test_truncated_sequences(sources, sequences, gather, kind):
    expected = [sequences[4][:3].tolist(), sequences[2].tolist()]
    assert gather(sources[kind], [4, 2], [3, 9], truncate=True) == expected
    with pytest.raises(TokenSourceError, match=r"sequence 2: the plan says 8 tokens, the source holds 9.*truncate"):
        gather(sources[kind], [0, 2], [5, 8])
    with pytest.raises(TokenSourceError, match="sequence 2: the plan says 10 tokens, the source holds 9"):
        gather(sources[kind], [0, 2], [5, 10], truncate=True)


def test_piece_beyond_the_end_is_refused(sources, gather, kind):
    for start, length in ((4, 6), (12, 1)):
        with pytest.raises(
            TokenSourceError, match=f"sequence 2: the plan says {length} tokens from token {start} on, .* holds 9;"
        ):
            gather(sources[kind], [2], [length], first_tokens=np.array([start]))


@pytest.mark.parametrize("missing", [-1, 5, 2**40])
def test_missing_id_is_named(sources, gather, kind, missing):
    for ask in (
        lambda source: gather(source, [0, missing], [5, 1]),
        lambda source: source.lengths(np.array([0, missing])),
        lambda source: source.read(missing),
    ):
        with pytest.raises(TokenSourceError, match=f"(sequence|id) {missing}\\b"):
            ask(sources[kind])
