"""Parquet files: row numbers as `packhorse prepare` gives them, row groups decoded once, and what cannot be read."""

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.flat_words import prepare

from packhorse.client.sources import ParquetSource, TokenSourceError, as_token_source
from packhorse.prepare import load_prepared


def everything(source):
    return [source.read(i).tolist() for i in range(len(source))]


@pytest.fixture
def many(tmp_path, token_table):
    """Twelve sequences of 1 to 12 tokens in six row groups of three files; file 1 lies in a folder below."""
    table = token_table([[i] * (i + 1) for i in range(12)], length=pa.array(range(1, 13)))
    for i, name in enumerate(("a.parquet", "b/0.parquet", "c.parquet")):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table[4 * i : 4 * i + 4], tmp_path / "data" / name, row_group_size=2)
    return tmp_path / "data"


@pytest.fixture
def reads(monkeypatch):
    """The row groups that were decoded, as they are."""
    decoded = []
    read = ParquetSource._read
    monkeypatch.setattr(
        ParquetSource, "_read", lambda self, group, name: decoded.append(group) or read(self, group, name)
    )
    return decoded


@pytest.mark.parametrize("pattern", ["", "**/*.parquet"])
def test_ids_are_those_that_prepare_gives(many, tmp_path, pattern):
    source = ParquetSource(many / pattern if pattern else many)
    prepare(input=str(many / pattern), output=tmp_path / "prepared", length_column="length", max_seq_len=16)
    _, _, _, pools = load_prepared(tmp_path / "prepared")
    assert len(pools) == len(source) == 12
    for length, ids in pools.items():
        assert source.lengths(np.asarray(ids, np.int64)).tolist() == [length] * len(ids)
    assert everything(source) == [[i] * (i + 1) for i in range(12)]


def test_files_are_read_in_the_given_order(many):
    paths = [many / "c.parquet", many / "a.parquet"]
    for source in (ParquetSource(paths), as_token_source([str(path) for path in paths])):
        assert [tokens[0] for tokens in everything(source)] == [8, 9, 10, 11, 0, 1, 2, 3]
    with pytest.raises(TokenSourceError, match="there is no file to read tokens from"):
        ParquetSource([])


def test_one_batch_decodes_each_row_group_once(many, reads, gather):
    """Even without a cache: what `lengths` fetched is held for `gather`."""
    source = ParquetSource(many, cache_bytes=0)
    ids = [11, 0, 10, 5, 1, 4]
    lengths = source.lengths(np.array(ids))
    assert gather(source, ids, lengths) == [[i] * (i + 1) for i in ids]
    assert sorted(reads) == [0, 2, 5]


def test_cache_keeps_the_row_groups_last_used_within_its_bytes(many, reads):
    size = pq.ParquetFile(many / "c.parquet").read_row_group(1, columns=["tokens"]).nbytes
    source = ParquetSource(many, cache_bytes=2 * size)
    for sequence_id in (10, 8, 11, 9):  # groups 5 and 4, and both again
        source.read(sequence_id)
    assert reads == [5, 4]
    source.read(10)
    source.read(6)  # group 3 takes the place of group 4
    source.read(10)
    assert reads == [5, 4, 3]
    source.read(8)
    assert reads == [5, 4, 3, 4]
    reads.clear()
    uncached = ParquetSource(many, cache_bytes=0)
    for sequence_id in (0, 1, 4, 0):  # the last one always stays
        uncached.read(sequence_id)
    assert reads == [0, 2, 0]
    with pytest.raises(ValueError, match="cache_bytes must be at least 0, got -1"):
        ParquetSource(many, cache_bytes=-1)


def test_fetched_tokens_pin_no_row_group(many):
    tokens = ParquetSource(many).read(11)
    owner = tokens
    while isinstance(owner, np.ndarray):
        owner = owner.base
    assert isinstance(owner, bytes)
    assert len(owner) == tokens.nbytes


def test_id_column(many, token_table, gather):
    pq.write_table(token_table([[0], [1, 1], [2]], id=pa.array([9, -1, 4])), many / "x.parquet", row_group_size=2)
    source = ParquetSource(many / "x.parquet", id_column="id")
    assert gather(source, [4, 9, -1], [1, 1, 2]) == [[2], [0], [1, 1]]
    with pytest.raises(TokenSourceError, match="no sequence with id 0"):
        source.read(0)
    pq.write_table(token_table([[0], [1]], id=pa.array([9, 9])), many / "x.parquet")
    with pytest.raises(TokenSourceError, match="rows 0 and 1 both have the id 9"):
        ParquetSource(many / "x.parquet", id_column="id").read(9)
    with pytest.raises(TokenSourceError, match="no column 'nr'"):
        ParquetSource(many / "x.parquet", id_column="nr")


def test_list_types_and_nulls(tmp_path, token_table):
    for kind in (pa.large_list(pa.uint16()), pa.list_(pa.int64(), 2)):
        pq.write_table(token_table([[1, 2], None, [5, None], [3, 4]], kind), tmp_path / "x.parquet", row_group_size=3)
        source = ParquetSource(tmp_path / "x.parquet")
        assert [source.read(i).tolist() for i in (0, 3)] == [[1, 2], [3, 4]]
        for i in (1, 2):
            with pytest.raises(TokenSourceError, match=f"sequence {i}: column 'tokens' of .* is null"):
                source.lengths(np.array([0, i]))


def test_other_types_are_refused(many, token_table):
    pq.write_table(token_table([[0.5]], pa.list_(pa.float64())), many / "d.parquet")
    with pytest.raises(TokenSourceError, match=r"d\.parquet: column 'tokens' holds list<.*double>"):
        ParquetSource(many)
    with pytest.raises(TokenSourceError, match="column 'length' holds int64, but tokens are lists"):
        ParquetSource(many, column="length")


def test_what_is_no_parquet_file(many):
    for path, kind in ((many / "none.parquet", FileNotFoundError), (many / "*.none", FileNotFoundError)):
        with pytest.raises(kind, match="none"):
            ParquetSource(path)
    (many / "a.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match=r"a\.parquet cannot be read as a Parquet file"):
        ParquetSource(many)


def test_file_changed_since_it_was_opened(many, token_table):
    source = ParquetSource(many)
    assert source.read(0).tolist() == [0]
    data = pickle.dumps(source)
    pq.write_table(token_table([[7]] * 4), many / "a.parquet", row_group_size=2)
    for late in (source, pickle.loads(data)):
        with pytest.raises(ValueError, match=r"a\.parquet has been replaced"):
            late.read(2)
    (many / "c.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=r"c\.parquet"):
        source.read(11)


def test_empty_files_have_no_ids(tmp_path, token_table):
    pq.write_table(token_table([]), tmp_path / "x.parquet")
    source = ParquetSource(tmp_path / "x.parquet")
    assert len(source) == 0
    with pytest.raises(TokenSourceError, match="no sequence with id 0; it is empty"):
        source.read(0)
