"""Megatron and flat files as sources: types, emptiness, and files that changed."""

import pickle

import numpy as np
import pytest

from packhorse.client.sources import FlatSource, MegatronSource, TokenSourceError, as_token_source
from packhorse.formats import write_flat_tokens


def test_flat_file_of_another_type(tmp_path, gather):
    write_flat_tokens(tmp_path / "x.bin", [[70_000, 1], [2]], np.uint32)
    assert gather(as_token_source(tmp_path / "x.bin"), [1, 0], [1, 2]) == [[2], [70_000, 1]]
    assert gather(FlatSource(tmp_path / "x.bin", np.uint32), [1, 0], [1, 2]) == [[2], [70_000, 1]]


def test_floating_point_file_is_refused(folder, sequences, tmp_path):
    index = bytearray((folder / "megatron.idx").read_bytes())
    index[17] = 7  # float32
    offsets_at = 34 + 4 * len(sequences)
    sizes_bytes = 4 * np.array([len(tokens) for tokens in sequences], "<i8")
    index[offsets_at : offsets_at + 8 * len(sequences)] = (np.cumsum(sizes_bytes) - sizes_bytes).tobytes()
    (tmp_path / "x.idx").write_bytes(index)
    (tmp_path / "x.bin").write_bytes(bytes(int(sizes_bytes.sum())))
    with pytest.raises(TokenSourceError, match="float32"):
        MegatronSource(tmp_path / "x.idx")


def test_empty_files(tmp_path, gather):
    write_flat_tokens(tmp_path / "x.bin", [], np.uint16)
    source = as_token_source(tmp_path / "x.bin")
    assert len(source) == 0
    assert gather(source, [], []) == []
    with pytest.raises(TokenSourceError, match="no sequence with id 0; it is empty"):
        gather(source, [0], [1])


def test_read_is_a_view(sources):
    for kind in ("megatron", "flat"):
        tokens = sources[kind].read(4, 10)
        assert not tokens.flags.owndata
        assert not tokens.flags.writeable


@pytest.mark.parametrize("name", ["x.bin", "x.bin.boundaries"])
def test_file_replaced_since_it_was_opened(tmp_path, name):
    """A spawned worker maps the file anew, and must not mix two of them."""
    write_flat_tokens(tmp_path / "x.bin", [[1, 2], [3]], np.uint16)
    data = pickle.dumps(as_token_source(tmp_path / "x.bin"))
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes() + bytes(8))
    with pytest.raises(ValueError, match="replaced"):
        pickle.loads(data).read(0)
