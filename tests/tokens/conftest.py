"""Five sequences in every layout that a source reads, the MDS shards written by MosaicML's own package."""

from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.batches import load, sequences_of  # fixtures

from packhorse.client.sources import (
    IndexableSource,
    MdsSource,
    ParquetSource,
    RemoteArrowSource,
    RemoteSource,
    StoreCache,
    TokenSource,
    TokenSourceError,
    as_token_source,
)
from packhorse.formats import MegatronWriter, write_flat_tokens

SEQUENCES = [7 * np.arange(n) + 1000 * i for i, n in enumerate((5, 1, 9, 3, 300))]
DATA = Path(__file__).parents[1] / "data"

KINDS = [
    "megatron", "flat", "arrays", "tensors", "lists", "mapping", "records", "own", "arrow", "arrow_stream",
    "arrow_files", "arrow_ids", "hf", "hf_shuffled", "hf_saved", "parquet", "parquet_files", "parquet_uncached", "mds",
    "mds_any", "mds_json", "remote", "remote_flat", "remote_parquet", "remote_parquet_files", "remote_arrow",
    "remote_arrow_ids", "remote_stream", "remote_saved", "remote_mds",
]  # fmt: skip


class OwnSource(TokenSource):
    """What a user would write: `read` alone."""

    def read(self, sequence_id, start=0, length=None):
        if not 0 <= sequence_id < len(SEQUENCES):
            raise TokenSourceError(f"no sequence {sequence_id}")
        return SEQUENCES[sequence_id][start:][:length]


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="session")
def sequences():
    return SEQUENCES


@pytest.fixture(scope="session")
def write_arrow():
    """Function: writes a table as an Arrow IPC file; `stream` for the other format, `rows` in a record batch."""

    def write(path, table, *, stream=False, rows=None, **options):
        new = pa.ipc.new_stream if stream else pa.ipc.new_file
        with new(str(path), table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
            writer.write_table(table, max_chunksize=rows)
        return path

    return write


@pytest.fixture(scope="session")
def token_table():
    """Function: a table of sequences as `tokens`, by default SEQUENCES as lists of int32; more columns as keywords."""

    def make(sequences=SEQUENCES, kind=None, **columns):
        rows = [tokens if tokens is None else list(tokens) for tokens in sequences]
        return pa.table({"tokens": pa.array(rows, kind or pa.list_(pa.int32())), **columns})

    return make


@pytest.fixture(scope="session")
def folder(tmp_path_factory, token_table, write_arrow):
    """The files, named as the kinds are."""
    datasets.disable_progress_bars()
    folder = tmp_path_factory.mktemp("tokens")
    with MegatronWriter(folder / "megatron", vocab_size=65_000) as writer:
        for tokens in SEQUENCES:
            writer.append(tokens)
    write_flat_tokens(folder / "flat.bin", SEQUENCES, np.uint16)
    table = token_table()
    write_arrow(folder / "arrow.arrow", token_table(kind=pa.large_list(pa.uint16())), rows=2)
    write_arrow(folder / "arrow_stream.arrow", table, stream=True, rows=2)
    for i, part in enumerate((table[:0], table[:2], table[2:])):
        write_arrow(folder / f"arrow_files-{i}.arrow", part, stream=i == 1, rows=1)
    order = [3, 0, 4, 2, 1]
    write_arrow(folder / "arrow_ids.arrow", table.take(order).append_column("id", pa.array(order, pa.uint16())), rows=2)
    pq.write_table(table, folder / "parquet.parquet", row_group_size=2)
    pq.write_table(table[:2], folder / "part-0.parquet")
    pq.write_table(table[2:].cast(pa.schema([("tokens", pa.list_(pa.uint16()))])), folder / "part-1.parquet")
    held(range(5)).save_to_disk(folder / "hf_saved", num_shards=2)
    return folder


def held(order):
    """A `datasets.Dataset` of SEQUENCES in an order, with a column that holds no tokens."""
    rows = [SEQUENCES[i].tolist() for i in order]
    return datasets.Dataset.from_dict({"input_ids": rows, "labels": rows, "text": ["x"] * len(rows)})


@pytest.fixture(scope="session")
def sources(folder):
    """Kind → source of SEQUENCES."""
    shuffled = [2, 0, 4, 1, 3]
    store = StoreCache(cache_folder=folder / "cache", block_bytes=64, read_ahead_bytes=1024)
    decoded = StoreCache(cache_folder=folder / "decoded", keeps_decoded=True)
    there = f"local://{folder}"
    return {
        "megatron": as_token_source(folder / "megatron.idx"),
        "flat": as_token_source(str(folder / "flat.bin")),
        "arrays": as_token_source([tokens.astype(np.uint16) for tokens in SEQUENCES]),
        "tensors": as_token_source([torch.from_numpy(tokens) for tokens in SEQUENCES]),
        "lists": as_token_source([tokens.tolist() for tokens in SEQUENCES]),
        "mapping": as_token_source(dict(enumerate(SEQUENCES))),
        "records": IndexableSource([{"input_ids": tokens.tolist()} for tokens in SEQUENCES], key="input_ids"),
        "own": as_token_source(OwnSource()),
        "arrow": as_token_source(folder / "arrow.arrow"),
        "arrow_stream": as_token_source(folder / "arrow_stream.arrow"),
        "arrow_files": as_token_source(folder / "arrow_files-*.arrow"),
        "arrow_ids": as_token_source(folder / "arrow_ids.arrow", id_column="id"),
        "hf": as_token_source(held(range(5))),
        "hf_shuffled": as_token_source(held(shuffled).select(np.argsort(shuffled))),
        "hf_saved": as_token_source(folder / "hf_saved", column="labels"),
        "parquet": as_token_source(folder / "parquet.parquet"),
        "parquet_files": as_token_source(folder / "part-*.parquet"),
        "parquet_uncached": ParquetSource(folder / "parquet.parquet", cache_bytes=0),
        "mds": as_token_source(DATA / "mds"),
        "mds_any": as_token_source(DATA / "mds", column="any_type"),
        "mds_json": as_token_source(DATA / "mds", column="listed"),
        "remote": RemoteSource((folder / "megatron.idx").as_uri(), cache_folder=folder / "cache", block_bytes=64),
        "remote_flat": RemoteSource((folder / "flat.bin").as_uri(), cache_folder=folder / "cache", block_bytes=64),
        "remote_parquet": ParquetSource(f"{there}/parquet.parquet", store=store),
        "parquet_decoded": ParquetSource(folder / "part-*.parquet", store=decoded),
        "remote_parquet_decoded": ParquetSource(f"{there}/parquet.parquet", store=decoded),
        "remote_arrow_decoded": RemoteArrowSource(f"{there}/arrow.arrow", store=decoded),
        "remote_parquet_files": ParquetSource(f"{there}/part-*.parquet", store=store, cache_bytes=0),
        "remote_arrow": RemoteArrowSource(f"{there}/arrow.arrow", store=store),
        "remote_arrow_ids": RemoteArrowSource(f"{there}/arrow_ids.arrow", id_column="id", store=store),
        "remote_stream": RemoteArrowSource(f"{there}/arrow_stream.arrow", store=store, kept_bytes=0),
        "remote_saved": RemoteArrowSource(f"{there}/hf_saved", column="labels", store=store),
        "remote_mds": MdsSource(f"local://{DATA / 'mds'}", column="input_ids", store=store),
    }


@pytest.fixture(scope="session")
def gather():
    """Function: gathers with `gap` untouched places before each sequence; what lies in them must stay."""

    def gathered(source, ids, lengths, gap=0, dtype=np.int64, **options):
        lengths = np.array(lengths, np.int64)
        starts = np.cumsum(lengths + gap) - lengths
        out = np.full(int(lengths.sum()) + gap * len(lengths), 77, dtype)
        is_gap = np.ones(len(out), bool)
        source.gather(np.array(ids, np.int64), lengths, out, starts, **options)
        pieces = []
        for at, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            pieces.append(out[at : at + length].tolist())
            is_gap[at : at + length] = False
        assert (out[is_gap] == 77).all()
        assert is_gap.sum() == gap * len(lengths)
        return pieces

    return gathered


__all__ = ["load", "sequences_of"]
