"""Decoded columns on the node's disk: decoded once for all processes, and never those of another file."""

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packhorse.client.loading.workers.preemption import protected_fork_server
from packhorse.client.sources import ParquetSource, StoreCache, TokenSourceError, as_token_source
from packhorse.tokens.stored import node_cache

ROWS = [[i] * (i % 7) for i in range(60)]


@pytest.fixture
def parquet(tmp_path):
    """Function: writes rows as a Parquet file in groups of ten."""

    def write(rows=ROWS):
        pq.write_table(
            pa.table({"input_ids": pa.array(rows, pa.list_(pa.int32()))}), tmp_path / "x.parquet", row_group_size=10
        )
        return tmp_path / "x.parquet"

    return write


@pytest.fixture
def store(tmp_path):
    return StoreCache(cache_folder=tmp_path / "cache", keeps_decoded=True)


def read(source, ids=range(60)):
    return [source.read(i).tolist() for i in ids]


def blocks(tmp_path):
    return sorted((tmp_path / "cache").glob("*/*.block"))


def refuse_to_decode(*_):
    raise AssertionError("decoded again")


def test_another_opening_decodes_nothing(parquet, store, tmp_path, monkeypatch):
    path = parquet()
    assert read(ParquetSource(path, store=store)) == ROWS
    assert len(blocks(tmp_path)) == 6
    monkeypatch.setattr(ParquetSource, "_decode", refuse_to_decode)
    again = as_token_source(path, store=store)
    assert read(again) == ROWS
    assert read(pickle.loads(pickle.dumps(again))) == ROWS
    with pytest.raises(AssertionError, match="decoded again"):
        ParquetSource(path).read(0)


def _count_decodes(path, folder, counts, number, barrier):
    source = ParquetSource(path, store=StoreCache(cache_folder=folder, keeps_decoded=True))
    decode, counts[number] = source._decode, 0

    def counted(group):
        counts[number] += 1
        return decode(group)

    source._decode = counted
    barrier.wait(60)
    assert read(source) == ROWS


def test_processes_that_begin_at_once_decode_each_group_once(parquet, tmp_path):
    context = protected_fork_server()
    barrier, counts = context.Barrier(3), context.Array("i", 3)
    several = [
        context.Process(target=_count_decodes, args=(parquet(), tmp_path / "cache", counts, number, barrier))
        for number in range(3)
    ]
    for process in several:
        process.start()
    for process in several:
        process.join(120)
    assert [process.exitcode for process in several] == [0, 0, 0]
    assert sum(counts) == 6


def test_rows_of_a_new_file_at_the_same_path_are_its_own(parquet, store):
    assert read(ParquetSource(parquet(), store=store)) == ROWS
    other = [[100 + i] * (i % 5) for i in range(60)]
    assert read(ParquetSource(parquet(other), store=store)) == other


def test_columns_of_one_file_are_apart(tmp_path, store):
    table = pa.table({"input_ids": [[1, 2], [3]], "loss_mask": pa.array([[0, 1], [1]], pa.list_(pa.uint8()))})
    pq.write_table(table, tmp_path / "x.parquet")
    tokens, mask = (ParquetSource(tmp_path / "x.parquet", column=name, store=store) for name in table.column_names)
    assert read(tokens, range(2)) == [[1, 2], [3]]
    assert read(mask, range(2)) == [[0, 1], [1]]
    assert mask.read(0).dtype == np.uint8


def test_altered_block_is_decoded_again(parquet, store, tmp_path):
    path = parquet()
    read(ParquetSource(path, store=store))
    for block in blocks(tmp_path):
        data = bytearray(block.read_bytes())
        data[len(data) // 2] ^= 1
        block.write_bytes(data)
    assert read(ParquetSource(path, store=store)) == ROWS


@pytest.mark.parametrize("hole", [None, [5, None]])
def test_nulls_are_named_decoded_or_not(parquet, store, hole):
    rows = [*ROWS[:13], hole, *ROWS[14:]]
    path = parquet(rows)
    for _ in range(2):
        source = ParquetSource(path, store=store)
        with pytest.raises(TokenSourceError, match=r"sequence 13: column 'input_ids' of .*x\.parquet is null there"):
            source.read(13)
        assert read(source, [12, 14]) == [ROWS[12], ROWS[14]]


def test_full_disk_costs_only_the_cache(parquet, store, tmp_path, monkeypatch, caplog):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node_cache, "_appearing", full)
    assert read(ParquetSource(parquet(), store=store)) == ROWS
    assert not blocks(tmp_path)
    assert "a block is not kept" in caplog.text


def test_folder_that_cannot_be_made(parquet, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="name another cache_folder"):
        ParquetSource(parquet(), store=StoreCache(cache_folder=tmp_path / "file" / "cache", keeps_decoded=True))


def test_limit_holds_for_decoded_columns_too(parquet, tmp_path):
    path = parquet([[i] * 1000 for i in range(60)])
    size = 10 * 1000 * 4
    store = StoreCache(cache_folder=tmp_path / "cache", cache_bytes=3 * size, keeps_decoded=True)
    read(ParquetSource(path, cache_bytes=0, store=store))
    held = sum(block.stat().st_size for block in blocks(tmp_path))
    assert size <= held <= 3 * size
