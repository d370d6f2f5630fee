"""Parquet, Arrow and MDS in a real S3 server: the tokens of local files, fetched ahead, through the node's cache."""

import pickle
import queue
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.flat_words import prepare

from packhorse.client import create_packed_dataloader
from packhorse.client.sources import (
    MdsSource,
    ParquetSource,
    RemoteArrowSource,
    StoreCache,
    StoreOptions,
    TokenSourceError,
    as_token_source,
)
from packhorse.tokens.fetch_ahead import FetchAhead
from packhorse.tokens.stored.node_cache import BlockCache

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """Where the cache is, unless a source says otherwise."""
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("put", "name", "kind", "columns"),
    [
        ("parquet.parquet", "parquet.parquet", ParquetSource, {}),
        ("part-*", "part-*.parquet", ParquetSource, {}),
        ("part-*", "", ParquetSource, {}),
        ("arrow_ids.arrow", "arrow_ids.arrow", RemoteArrowSource, {"id_column": "id"}),
        ("arrow_files-*", "arrow_files-[12].arrow", RemoteArrowSource, {}),
        ("hf_saved", "hf_saved", RemoteArrowSource, {"column": "labels"}),
        ("mds", "mds", MdsSource, {"column": "input_ids"}),
        ("mds", "mds/index.json", MdsSource, {"column": "listed"}),
    ],
)
def test_urls_lead_to_the_source_of_what_is_there(folder, bucket, sequences, put, name, kind, columns):
    for path in (DATA if put == "mds" else folder).glob(put):
        (bucket.put_folder if path.is_dir() else bucket.put)(f"deep/{path.name}", path)
    source = as_token_source(f"{bucket.url}/deep/{name}".rstrip("/"), **columns)
    assert type(source) is kind
    again = pickle.loads(pickle.dumps(source))
    for one in (source, again):
        assert [one.read(number).tolist() for number in (4, 0, 2)] == [sequences[i].tolist() for i in (4, 0, 2)]
    assert len(source) == 5


def test_a_list_of_urls(folder, bucket, sequences):
    urls = [bucket.put(f"{number}.parquet", folder / f"part-{number}.parquet") for number in (1, 0)]
    source = as_token_source(urls)
    assert [source.read(row).tolist() for row in range(5)] == [sequences[i].tolist() for i in (2, 3, 4, 0, 1)]
    assert source.origin(3) == f"row 0 of {urls[1]}"
    with pytest.raises(TokenSourceError, match="all of one kind"):
        ParquetSource([urls[0], str(folder / "part-0.parquet")])
    with pytest.raises(TokenSourceError, match=r"no sequence with id 5"):
        source.read(5)


def test_a_folder_of_neither_kind(bucket):
    bucket.put("deep/notes.txt", b"x")
    with pytest.raises(TokenSourceError, match=r"holds no Parquet or Arrow files; give a pattern"):
        as_token_source(f"{bucket.url}/deep")


@pytest.mark.parametrize(
    "kind", ["parquet", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("arrow", "stream"))]
)
def test_a_loader_reads_ahead_along_the_stream(bucket, tmp_path, kind, write_arrow):
    rng = np.random.default_rng(2)
    rows = [rng.integers(0, 1000, n).tolist() for n in rng.integers(1, 60, 400)]
    table = pa.table({"tokens": pa.array(rows, pa.list_(pa.uint16()))})
    path = tmp_path / f"corpus.{'parquet' if kind == 'parquet' else 'arrow'}"
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=20)
    else:
        write_arrow(path, table, stream=kind == "stream", rows=20)
    prepare(path, max_seq_len=64, output=tmp_path / "data" / "set", progress=False)
    url = bucket.put(path.name, path)
    options = StoreOptions(storage_options=bucket.storage_options)
    store = StoreCache(cache_folder=tmp_path / "cache", block_bytes=4096, options=options)
    there = (ParquetSource if kind == "parquet" else RemoteArrowSource)(url, store=store)

    def batches(tokens):
        loader = create_packed_dataloader(f"embedded:{tmp_path / 'data'}", "set", tokens, batch_size=4, seed=1)
        return [batch["input_ids"].tolist() for batch in loader]

    assert batches(there) == batches(path)
    assert list((tmp_path / "cache").glob("*/*.block"))


def test_an_object_that_was_replaced_is_another(tmp_path, sequences, token_table):
    memory = fsspec.filesystem("memory")
    store = StoreCache(cache_folder=tmp_path / "cache")
    for first in (0, 2):
        path = tmp_path / "corpus.parquet"
        pq.write_table(token_table(sequences[first:]), path)
        memory.pipe_file("/replaced/corpus.parquet", path.read_bytes())
        source = ParquetSource("memory://replaced/corpus.parquet", store=store)
        assert source.read(0).tolist() == sequences[first].tolist()
    memory.rm("/replaced", recursive=True)


def test_items_are_fetched_before_they_are_asked_for():
    fetched: queue.SimpleQueue[int] = queue.SimpleQueue()

    def fetch(number):
        if number == 7:
            raise OSError("no seven")
        fetched.put(number)
        return np.int64(number * 10)  # of 8 bytes

    items = FetchAhead(fetch, ahead=2, keep_bytes=16)
    items.expect([3, 1, 2])
    assert {fetched.get(timeout=30) for _ in range(2)} == {3, 1}
    assert fetched.empty()
    assert items.get(3) == 30  # which makes room for one more
    assert fetched.get(timeout=30) == 2
    assert [items.get(1), items.get(2)] == [10, 20]
    assert fetched.empty()
    assert items.get(3) == 30  # it was let go
    assert fetched.get(timeout=30) == 3
    items.expect([7])
    with pytest.raises(OSError, match="no seven"):
        items.get(7)


def test_files_kept_whole_are_evicted_when_nobody_has_them(tmp_path):
    cache = BlockCache(tmp_path, max_bytes=3000)

    def keep(name):
        return cache.whole(name, "x.idx", lambda path: path.write_bytes(bytes(1000)), patience_seconds=1)

    held, other = keep("first"), keep("second")
    also_held = pickle.loads(pickle.dumps(held))
    del held, other
    for name in ("third", "fourth", "fifth", "sixth"):
        keep(name)
    left = {path.parent.name for path in tmp_path.glob("*/x.idx")}
    assert "first" in left  # the oldest, which somebody has
    assert "second" not in left
    assert len(left) <= 3
    assert also_held.path.read_bytes() == bytes(1000)
    assert keep("second").path.exists()  # fetched again


def test_numbers_out_of_range():
    with pytest.raises(ValueError, match="block_bytes must be at least 1"):
        StoreCache(block_bytes=0)
