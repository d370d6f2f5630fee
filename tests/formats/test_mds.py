"""MDS shards written by MosaicML's own package, read whole; and every way in which they can be broken."""

import json
import multiprocessing
import pickle
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from packhorse.formats import MdsShards, mds
from packhorse.formats.mds import shards as mds_shards

DATA = Path(__file__).parents[1] / "data"
SEQUENCES = [7 * np.arange(n) + 1000 * i for i, n in enumerate((5, 1, 9, 3, 300))]


@pytest.fixture
def shards(tmp_path):
    """A copy of the shards, to be broken."""
    return Path(shutil.copytree(DATA / "mds", tmp_path / "mds"))


def edit(folder, change, shard=0):
    """Changes one shard's entry in the index."""
    index = json.loads((folder / "index.json").read_text())
    change(index["shards"][shard])
    (folder / "index.json").write_text(json.dumps(index))


def test_every_column_of_the_real_shards():
    shards = MdsShards(DATA / "mds")
    assert len(shards) == 5
    assert shards.columns["input_ids"] == "ndarray:uint16"
    for i, tokens in enumerate(SEQUENCES):
        assert mds.read_array(shards.cell(i, "input_ids"), "ndarray:uint16").tolist() == tokens.tolist()
        assert mds.read_array(shards.cell(i, "any_type"), "ndarray").tolist() == tokens.tolist()
        assert mds.read_array(shards.cell(i, "fixed"), "ndarray:int32:4").tolist() == [-i, 1 - i, 2 - i, 3 - i]
        assert mds.read_array(shards.cell(i, "grid"), "ndarray:int64:2,2").tolist() == [[i, i]] * 2
        assert mds.read_array(shards.cell(i, "floats"), "ndarray:float32").tolist() == tokens.tolist()
        assert np.frombuffer(shards.cell(i, "raw"), "<u4").tolist() == tokens.tolist()
        assert json.loads(bytes(shards.cell(i, "listed"))) == tokens.tolist()
        assert bytes(shards.cell(i, "text")) == b"x" * i
        assert struct.unpack("<q", shards.cell(i, "doc_id")) == (100 - i,)
    assert shards.integers("doc_id").tolist() == [100, 99, 98, 97, 96]
    with pytest.raises(ValueError, match="'text' is encoded as 'str', but integers are needed"):
        shards.integers("text")
    for index in (-1, 5):
        with pytest.raises(IndexError, match=r"\[0, 5\)"):
            shards.cell(index, "text")


def test_integers_behind_other_columns(shards):
    """`fixed`, four int32, called two int64 in the index: the second lies behind columns of both kinds."""

    def split(entry):
        at = entry["column_names"].index("fixed")
        for what, values in (("names", ["f0", "f1"]), ("encodings", ["int64", "int64"]), ("sizes", [8, 8])):
            entry[f"column_{what}"][at : at + 1] = values

    for shard in (0, 1):
        edit(shards, split, shard)
    opened = MdsShards(shards)
    for k, name in enumerate(("f0", "f1")):
        expected = [np.array([2 * k - i, 2 * k + 1 - i], "<i4").view("<i8")[0] for i in range(5)]
        assert opened.integers(name).tolist() == expected
        assert [np.frombuffer(opened.cell(i, name), "<i8")[0] for i in range(5)] == expected


def test_cells_are_views():
    cell = MdsShards(DATA / "mds").cell(4, "input_ids")
    assert cell.readonly
    assert not mds.read_array(cell, "ndarray:uint16").flags.owndata


@pytest.mark.parametrize(
    ("encoding", "found"),
    [("ndarray", (None, None)), ("ndarray:int8", (np.dtype("i1"), None)), ("ndarray:uint16:3", (np.dtype("<u2"), (3,))),
     ("ndarray:float64:3,4", (np.dtype("<f8"), (3, 4))), ("int", None), ("bytes", None), ("ndarrays", None)],
)  # fmt: skip
def test_names_of_encodings(encoding, found):
    assert mds.array_type(encoding) == found


@pytest.mark.parametrize(
    "encoding", ["ndarray:", "ndarray:int7", "ndarray:int8:", "ndarray:int8:x", "ndarray:int8:1:2"]
)
def test_names_of_no_encoding(encoding):
    with pytest.raises(ValueError, match="not a known MDS encoding"):
        mds.array_type(encoding)


@pytest.mark.parametrize(
    ("data", "encoding"),
    [(b"", "ndarray"), (b"\x07\x04\x01\x00", "ndarray"), (b"\x08", "ndarray"), (b"\x05\x03", "ndarray:uint8"),
     (b"\x04\x02\x00", "ndarray:uint16"), (b"\x04\x02\x00\x00", "ndarray:uint16"), (b"\0\0\0", "ndarray:uint16:2")],
)  # fmt: skip
def test_bytes_that_are_no_array(data, encoding):
    with pytest.raises(ValueError, match="are not an array of encoding"):
        mds.read_array(memoryview(data), encoding)


def test_an_array_longer_than_its_extents_fit_in_a_byte():
    values = np.arange(70_000, dtype="<u4")
    data = bytes([32, 1 << 2 | 2]) + struct.pack("<I", 70_000) + values.tobytes()
    assert np.array_equal(mds.read_array(memoryview(data), "ndarray"), values)


@pytest.mark.parametrize(
    ("text", "message"),
    [("nothing", "not an index of MDS shards"), ("[]", "not an index of MDS shards"),
     ('{"version": 2}', "not an index of MDS"),
     ('{"version": 3, "shards": []}', "version 3; only version 2"), ('{"version": 2, "shards": []}', "found: none"),
     ('{"version": 2, "shards": [{"format": "json"}]}', "found: json"),
     ('{"version": 2, "shards": [{"format": "mds"}]}', "not an index of MDS shards: KeyError")],
)  # fmt: skip
def test_an_index_that_is_none(shards, text, message):
    (shards / "index.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        MdsShards(shards)


@pytest.mark.parametrize(
    "edited",
    [
        lambda entry: entry.pop("samples"),
        lambda entry: entry["raw_data"].pop("bytes"),
        lambda entry: entry.update(samples="many"),
        lambda entry: entry.update(column_names=None),
    ],
)
def test_an_index_whose_shard_lacks_its_size(shards, edited):
    edit(shards, edited)
    with pytest.raises(ValueError, match="not an index of MDS shards"):
        MdsShards(shards)


def test_columns_that_do_not_fit(shards):
    edit(shards, lambda entry: entry["column_sizes"].pop())
    with pytest.raises(ValueError, match="do not fit each other"):
        MdsShards(shards)
    edit(shards, lambda entry: entry["column_sizes"].append(None))
    edit(shards, lambda entry: entry["column_names"].reverse(), shard=1)
    with pytest.raises(ValueError, match="shard 1 has other columns than shard 0"):
        MdsShards(shards)


def test_missing_and_compressed_shards(shards):
    (shards / "shard.00001.mds").unlink()
    with pytest.raises(FileNotFoundError, match=r"shard\.00001\.mds is missing"):
        MdsShards(shards)
    with pytest.raises(ValueError, match=r"only there compressed, as shard\.00000\.mds\.zstd.*decompress"):
        MdsShards(DATA / "mds_zstd")


@pytest.mark.parametrize(
    ("change", "message"),
    [(lambda data: data[:-1], "it is truncated or replaced"),
     (lambda data: struct.pack("<I", 3) + data[4:], "does not hold the 4 sequences"),
     (lambda data: data[:4] + struct.pack("<I", 8) + data[8:], "offsets do not run"),
     (lambda data: data[:8] + struct.pack("<I", 5) + data[12:], "offsets do not run"),
     (lambda data: data[:20] + struct.pack("<I", len(data) - 1) + data[24:], "offsets do not run")],
)  # fmt: skip
def test_broken_shards(shards, change, message):
    path = shards / "shard.00000.mds"
    path.write_bytes(change(path.read_bytes()))
    opened = MdsShards(shards)
    assert bytes(opened.cell(4, "text")) == b"xxxx"  # the other shard
    for read in (lambda: opened.cell(0, "text"), lambda: opened.integers("doc_id")):
        with pytest.raises(ValueError, match=rf"shard\.00000\.mds.*{message}"):
            read()


@pytest.mark.parametrize("size", [10_000, 2**32 - 1])
def test_sizes_that_leave_the_sequence(shards, size):
    path = shards / "shard.00000.mds"
    data = bytearray(path.read_bytes())
    (begin,) = struct.unpack_from("<I", data, 4)
    struct.pack_into("<I", data, begin, size)  # of `any_type`, the first column
    path.write_bytes(data)
    opened = MdsShards(shards)
    for column in ("any_type", "input_ids", "doc_id"):
        with pytest.raises(ValueError, match=f"sequence 0, column '{column}' ends after the sequence"):
            opened.cell(0, column)
    with pytest.raises(ValueError, match="sequence 0, column 'doc_id' ends after"):
        opened.integers("doc_id")


def test_more_shards_than_may_be_open(monkeypatch):
    monkeypatch.setattr(mds_shards, "_MAX_OPEN_SHARDS", 1)
    shards = MdsShards(DATA / "mds")
    first = shards.cell(2, "text")
    for index in (4, 2, 4):
        assert bytes(shards.cell(index, "text")) == b"x" * index
        assert len(shards._open) == 1
    assert bytes(first) == b"xx"  # a view outlives its shard's place


def test_pickle_carries_the_index_and_no_tokens():
    shards = MdsShards(DATA / "mds")
    shards.cell(4, "input_ids")
    pickled = pickle.dumps(shards)
    assert len(pickled) < 2000
    assert bytes(pickle.loads(pickled).cell(3, "text")) == b"xxx"


def test_reads_in_a_spawned_process():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(MdsShards.integers, (MdsShards(DATA / "mds"), "doc_id")).tolist() == [100, 99, 98, 97, 96]


def test_an_index_that_is_nested_deeply_is_no_index(shards):
    (shards / "index.json").write_text('{"version": 2, "shards": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(ValueError, match="is not an index of MDS shards"):
        MdsShards(shards)
