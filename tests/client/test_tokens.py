"""Token sources: the same tokens from every layout, errors that name the sequence, pickling and forking."""

import multiprocessing
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.client.tokens import (
    FlatSource,
    IndexableSource,
    MegatronSource,
    TokenSource,
    TokenSourceError,
    as_token_source,
)
from packhorse.formats import MegatronWriter, write_flat_tokens

SEQUENCES = [np.random.default_rng(n).integers(0, 65_000, n) for n in (5, 1, 9, 3, 300)]
KINDS = ["megatron", "flat", "arrays", "tensors", "lists", "mapping", "records", "own"]
STORED = ["megatron", "flat"]


class OwnSource(TokenSource):
    """What a user would write: `read` alone."""

    def read(self, sequence_id, start=0, length=None):
        if not 0 <= sequence_id < len(SEQUENCES):
            raise TokenSourceError(f"no sequence {sequence_id}")
        return SEQUENCES[sequence_id][start:][:length]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    with MegatronWriter(folder / "megatron", vocab_size=65_000) as writer:
        for tokens in SEQUENCES:
            writer.append(tokens)
    write_flat_tokens(folder / "flat.bin", SEQUENCES, np.uint16)
    return folder


@pytest.fixture(scope="module")
def sources(folder):
    return {
        "megatron": as_token_source(folder / "megatron.idx"),
        "flat": as_token_source(str(folder / "flat.bin")),
        "arrays": as_token_source([tokens.astype(np.uint16) for tokens in SEQUENCES]),
        "tensors": as_token_source([torch.from_numpy(tokens) for tokens in SEQUENCES]),
        "lists": as_token_source([tokens.tolist() for tokens in SEQUENCES]),
        "mapping": as_token_source(dict(enumerate(SEQUENCES))),
        "records": IndexableSource([{"input_ids": tokens.tolist()} for tokens in SEQUENCES], key="input_ids"),
        "own": as_token_source(OwnSource()),
    }


def gather(source, ids, lengths, gap=0, **options):
    """Gathers with `gap` untouched places before each sequence, which must stay untouched."""
    lengths = np.array(lengths, np.int64)
    starts = np.cumsum(lengths + gap) - lengths
    out = np.full(int(lengths.sum()) + gap * len(lengths), -7)
    source.gather(np.array(ids, np.int64), lengths, out, starts, **options)
    pieces = [out[at : at + n].tolist() for at, n in zip(starts.tolist(), lengths.tolist(), strict=True)]
    assert (out == -7).sum() == gap * len(lengths)
    return pieces


@pytest.mark.parametrize("kind", KINDS)
def test_gather_and_read_give_the_tokens(sources, kind):
    ids = [2, 0, 4, 1, 3, 0]
    assert gather(sources[kind], ids, [len(SEQUENCES[i]) for i in ids], gap=2) == [SEQUENCES[i].tolist() for i in ids]
    assert gather(sources[kind], [], []) == []
    assert sources[kind].read(2).tolist() == SEQUENCES[2].tolist()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 320), st.none() | st.integers(0, 320)), max_size=5))
def test_read_slices_and_pieces_are_gathered(sources, slices):
    expected = [SEQUENCES[i][start:].tolist()[:length] for i, start, length in slices]
    pieces = [(i, min(start, len(SEQUENCES[i])), len(t)) for (i, start, _), t in zip(slices, expected, strict=True)]
    for source in sources.values():
        assert [source.read(i, start, length).tolist() for i, start, length in slices] == expected
        ids, starts, lengths = (list(part) for part in zip(*pieces, strict=True)) if pieces else ([], [], [])
        assert gather(source, ids, lengths, starts=np.array(starts, np.int64)) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_truncated_sequences(sources, kind):
    assert gather(sources[kind], [4, 2], [3, 9], truncate=True) == [SEQUENCES[4][:3].tolist(), SEQUENCES[2].tolist()]
    with pytest.raises(TokenSourceError, match=r"sequence 2: the plan says 8 tokens, the source holds 9.*truncate"):
        gather(sources[kind], [0, 2], [5, 8])
    with pytest.raises(TokenSourceError, match="sequence 2: the plan says 10 tokens, the source holds 9"):
        gather(sources[kind], [0, 2], [5, 10], truncate=True)


@pytest.mark.parametrize("kind", KINDS)
def test_piece_beyond_the_end_is_refused(sources, kind):
    for start, length in ((4, 6), (12, 1)):
        with pytest.raises(
            TokenSourceError, match=f"sequence 2: the plan says {length} tokens from token {start} on, .* holds 9;"
        ):
            gather(sources[kind], [2], [length], starts=np.array([start]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("missing", [-1, 5, 2**40])
def test_missing_id_is_named(sources, kind, missing):
    with pytest.raises(TokenSourceError, match=str(missing)):
        gather(sources[kind], [0, missing], [5, 1])
    with pytest.raises(TokenSourceError, match=str(missing)):
        sources[kind].read(missing)


def test_items_that_are_not_tokens():
    for item in ([0.5, 1.0], [[1, 2]], 3, "ab"):
        with pytest.raises(TokenSourceError, match=r"sequence 0: .*1-D list of integers"):
            gather(IndexableSource([item]), [0], [2])
    with pytest.raises(TokenSourceError, match=r"keys \['a', 'b'\].*key="):
        gather(IndexableSource([{"b": 0, "a": 1}]), [0], [2])
    with pytest.raises(TokenSourceError, match="no key 'c'"):
        gather(IndexableSource([{"b": 0, "a": 1}], key="c"), [0], [2])
    with pytest.raises(TokenSourceError, match="sequence 0: the plan says 2 tokens, the source holds 0"):
        gather(IndexableSource([[]]), [0], [2])
    with pytest.raises(TokenSourceError, match="__getitem__"):
        as_token_source(3)


def test_mapping_may_have_any_ids():
    assert gather(IndexableSource({-3: [1, 2], 2**40: [5]}), [2**40, -3], [1, 2]) == [[5], [1, 2]]


def test_paths_pick_the_layout(folder, tmp_path):
    for name in ("megatron", "megatron.bin", "megatron.idx"):
        assert isinstance(as_token_source(folder / name), MegatronSource)
    for name in ("flat.bin", "flat.bin.boundaries"):
        source = as_token_source(folder / name)
        assert isinstance(source, FlatSource)
        assert len(source) == len(SEQUENCES)
    source = OwnSource()
    assert as_token_source(source) is source
    with pytest.raises(TokenSourceError, match=r"nothing\.idx.*nothing\.bin\.boundaries"):
        as_token_source(tmp_path / "nothing.bin")
    for suffix in (".bin", ".idx", ".bin.boundaries"):
        (tmp_path / f"both{suffix}").touch()
    with pytest.raises(TokenSourceError, match=r"both\.idx and both\.bin\.boundaries"):
        as_token_source(tmp_path / "both.bin")


def test_flat_file_of_another_type(tmp_path):
    write_flat_tokens(tmp_path / "x.bin", [[70_000, 1], [2]], np.uint32)
    assert gather(as_token_source(tmp_path / "x.bin"), [1, 0], [1, 2]) == [[2], [70_000, 1]]
    assert gather(FlatSource(tmp_path / "x.bin", np.uint32), [1, 0], [1, 2]) == [[2], [70_000, 1]]


def test_floating_point_file_is_refused(folder, tmp_path):
    index = bytearray((folder / "megatron.idx").read_bytes())
    index[17] = 7  # float32
    offsets_at = 34 + 4 * len(SEQUENCES)
    index[offsets_at : offsets_at + 8 * len(SEQUENCES)] = bytes(8 * len(SEQUENCES))
    (tmp_path / "x.idx").write_bytes(index)
    (tmp_path / "x.bin").write_bytes(bytes(4 * 400))
    with pytest.raises(TokenSourceError, match="float32"):
        MegatronSource(tmp_path / "x.idx")


@pytest.mark.parametrize("kind", STORED)
def test_pickled_source_carries_no_tokens(sources, kind):
    source = sources[kind]
    expected = gather(source, [4], [300])  # the map is open when the source is pickled
    data = pickle.dumps(source)
    assert SEQUENCES[4].astype(np.uint16).tobytes()[:64] not in data
    assert gather(pickle.loads(data), [4], [300]) == expected


def _gathered_in_worker(source):
    return gather(source, [4, 0], [300, 5])


@pytest.mark.parametrize("kind", STORED)
def test_source_in_forked_worker(sources, kind):
    expected = gather(sources[kind], [4, 0], [300, 5])
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(_gathered_in_worker, [sources[kind]] * 2) == [expected] * 2


def test_empty_files(tmp_path):
    write_flat_tokens(tmp_path / "x.bin", [], np.uint16)
    source = as_token_source(Path(tmp_path / "x.bin"))
    assert gather(source, [], []) == []
    with pytest.raises(TokenSourceError, match="no sequence with id 0"):
        gather(source, [0], [1])
