"""MDS shards as a source: which columns hold tokens, ids, and what is refused. The shards are MosaicML's own."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from packhorse.client.sources import MdsSource, TokenSourceError, as_token_source

SHARDS = Path(__file__).parents[1] / "data" / "mds"


@pytest.mark.parametrize(
    ("column", "dtype", "types"),
    [("input_ids", None, ["uint16"] * 5), ("any_type", None, ["int32", "int64", "uint16", "int32", "int64"]),
     ("raw", "uint32", ["uint32"] * 5), ("listed", None, ["int64"] * 5)],
)  # fmt: skip
def test_every_encoding_of_tokens(sequences, column, dtype, types):
    source = MdsSource(SHARDS, column=column, dtype=dtype)
    assert len(source) == 5
    for i, name in enumerate(types):
        tokens = source.read(i)
        assert tokens.dtype == name
        assert tokens.tolist() == sequences[i].tolist()


def test_arrays_of_one_shape(gather):
    source = MdsSource(SHARDS / "index.json", column="fixed")
    assert gather(source, [4, 1], [4, 4]) == [[-4, -3, -2, -1], [-1, 0, 1, 2]]


def test_id_column(sequences, gather):
    source = as_token_source(SHARDS, id_column="doc_id")
    assert gather(source, [98, 100, 96], [9, 5, 300]) == [sequences[i].tolist() for i in (2, 0, 4)]
    with pytest.raises(TokenSourceError, match="no sequence with id 0; its 5 ids come from a column"):
        source.read(0)
    numbered = as_token_source(SHARDS)
    assert numbered.for_ids("") is numbered
    assert gather(numbered.for_ids("doc_id"), [98, 100], [9, 5]) == [sequences[i].tolist() for i in (2, 0)]
    assert gather(numbered, [2, 0], [9, 5]) == [sequences[i].tolist() for i in (2, 0)]
    for column, message in (
        ("key", "has no such column"),
        ("text", "'text' is encoded as 'str', but ids are integers"),
    ):
        with pytest.raises(TokenSourceError, match=message):
            numbered.for_ids(column)
        assert source.for_ids(column) is source  # was told which column holds the ids


@pytest.mark.parametrize(
    ("options", "message"),
    [({"column": "pickled"}, "'pickled' is pickled, and unpickling runs"),
     ({"column": "floats"}, "'floats' holds float32, but tokens are integers"),
     ({"column": "grid"}, r"'grid' holds arrays of shape \[2, 2\]"),
     ({"column": "text"}, "'text' is encoded as 'str'"),
     ({"column": "raw"}, "'raw' holds bytes; give the type of its integers, as in dtype="),
     ({"column": "raw", "dtype": "float32"}, "dtype is float32, but tokens are integers"),
     ({"column": "input_ids", "dtype": "uint16"}, "'input_ids' is encoded as 'ndarray:uint16'; leave dtype out"),
     ({"column": "nothing"}, "no column 'nothing'; its columns are: 'any_type'"),
     ({"id_column": "nothing"}, "no column 'nothing'"),
     ({"id_column": "text"}, "'text' is encoded as 'str', but ids are integers")],
)  # fmt: skip
def test_columns_that_are_refused(options, message):
    with pytest.raises(TokenSourceError, match=message):
        MdsSource(SHARDS, **options)


def test_the_column_is_chosen_or_asked_for(tmp_path):
    def renamed(name):
        """The shards with `input_ids` under another name of as many letters; only the index says names."""
        shutil.copytree(SHARDS, tmp_path / name)
        index = tmp_path / name / "index.json"
        index.write_text(index.read_text().replace('"input_ids"', f'"{name}"'))
        return tmp_path / name

    assert MdsSource(SHARDS).read(0).dtype == np.uint16
    assert MdsSource(SHARDS, dtype="uint32").read(0).dtype == np.uint32  # the only one of bytes
    with pytest.raises(TokenSourceError, match=r"4 of its columns could hold tokens; .*'listed' \(json\)"):
        MdsSource(renamed("other_ids"))


def test_raw_bytes_that_do_not_fit_the_type():
    with pytest.raises(TokenSourceError, match="sequence 0, column 'raw'"):
        MdsSource(SHARDS, column="raw", dtype="uint64").read(0)


def test_lists_that_hold_no_integers(tmp_path, sequences):
    shutil.copytree(SHARDS, tmp_path / "mds")
    shard = tmp_path / "mds" / "shard.00000.mds"
    data = shard.read_bytes()
    for old, new, error in ((b"[1000]", b"[10.5]", "float64"), (b"[1000]", b"[10 5]", "delimiter")):
        assert data.count(old) == 1
        shard.write_bytes(data.replace(old, new))
        source = MdsSource(tmp_path / "mds", column="listed")
        assert source.read(0).tolist() == sequences[0].tolist()
        with pytest.raises(TokenSourceError, match=f"sequence 1.*{error}"):
            source.read(1)
