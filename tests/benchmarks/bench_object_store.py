"""Tokens from an object store through the node's cache, beside a plain download of the same bytes."""

import json
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness import Row, Sample, interleaved
from workload import Workspace, in_words

from packhorse.client.sources import MdsSource, ParquetSource, RemoteArrowSource, RemoteSource, StoreCache, TokenSource
from packhorse.formats import MegatronWriter

NOTE = (
    "object-store: a Megatron pair behind an HTTP server on loopback that answers ranges, takes 20 ms for each request "
    "and sends 100 MB/s on each connection, as object stores do about; read through fsspec into an empty cache, in the "
    "order of locality windows of 4,096 neighbours or in no order, and once more with the cache full. Beside it one "
    "request for the whole file. The same tokens in Parquet (zstd), Arrow and MDS, in row groups and record batches of "
    "512 sequences and shards of 8,192, count with the bytes of their files, and have a download of these beside them."
)
_SEQUENCE_TOKENS = 1_000
_GROUP_SEQUENCES = 512
_SHARD_SEQUENCES = 8_192
_BATCH = 64
_WINDOW = 4_096
_BLOCK_OF_IDS = 1 << 16
"""Of a stream that runs: half a mebibyte of ids."""
_SERVER = Path(__file__).with_name("slow_store.py")


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    num_sequences = workspace.sizes.stored_tokens // _SEQUENCE_TOKENS
    folder = workspace.root / "store"
    folder.mkdir()
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 60_000, (num_sequences, _SEQUENCE_TOKENS), dtype=np.uint16)
    with MegatronWriter(folder / "corpus", vocab_size=60_000) as writer:
        for sequence in tokens:
            writer.append(sequence)
    tables = _write_tables(folder, tokens)
    windows = np.concatenate([rng.permutation(some) for some in np.split(*_windows(num_sequences))])
    scattered = rng.permutation(num_sequences)[: num_sequences // 16]
    with _serving(folder) as url:

        def download(*names: str) -> float:
            started = time.perf_counter()
            size_bytes = 0
            for name in names:
                with urllib.request.urlopen(f"{url}/{name}") as answer:
                    while data := answer.read(1 << 20):
                        size_bytes += len(data)
            return size_bytes / 1e6 / (time.perf_counter() - started)

        def ours(ids: np.ndarray, *, warm: bool = False, block_bytes: int = 1 << 20) -> float:
            with tempfile.TemporaryDirectory(dir=workspace.root) as cache:
                source = RemoteSource(f"{url}/corpus.idx", cache_folder=cache, block_bytes=block_bytes)
                if warm:
                    _read(source, ids)
                    source = RemoteSource(f"{url}/corpus.idx", cache_folder=cache, block_bytes=block_bytes)
                started = time.perf_counter()
                _read(source, ids)
                return len(ids) * _SEQUENCE_TOKENS * 2 / 1e6 / (time.perf_counter() - started)

        def table(kind: str) -> float:
            with tempfile.TemporaryDirectory(dir=workspace.root) as cache:
                source = _OPENED[kind](url, StoreCache(cache_folder=cache))
                started = time.perf_counter()
                _read(source, windows)
                return (
                    sum((folder / name).stat().st_size for name in tables[kind]) / 1e6 / (time.perf_counter() - started)
                )

        repeats = max(1, workspace.sizes.repeats // 2)
        plain, near, far, again = interleaved(
            repeats,
            lambda: download("corpus.bin"),
            lambda: ours(windows),
            lambda: ours(scattered, block_bytes=1 << 16),
            lambda: ours(windows, warm=True),
        )
        of_tables = {
            kind: interleaved(repeats, lambda kind=kind: table(kind), lambda kind=kind: download(*tables[kind]))
            for kind in tables
        }
    size = f"{in_words(num_sequences * _SEQUENCE_TOKENS)} tokens"
    return [
        _row("locality windows, cold cache", size, near, plain, target=True),
        _row("no order, cold cache, blocks of 64 KiB, a 16th of it", size, far, plain, target=False),
        _row("locality windows, warm cache", size, again, plain, target=False),
        *(
            _row(f"{kind}, locality windows, cold cache", size, ours_there, whole, target=True)
            for kind, (ours_there, whole) in of_tables.items()
        ),
    ]


_OPENED: dict[str, Callable[[str, StoreCache], TokenSource]] = {
    "Parquet": lambda url, store: ParquetSource(f"{url}/corpus.parquet", store=store),
    "Arrow file": lambda url, store: RemoteArrowSource(f"{url}/file.arrow", store=store),
    "Arrow stream": lambda url, store: RemoteArrowSource(f"{url}/stream.arrow", store=store),
    "MDS": lambda url, store: MdsSource(f"{url}/mds", store=store),
}


def _write_tables(folder: Path, tokens: np.ndarray) -> dict[str, list[str]]:
    """Writes tokens [n, length] as each kind, and returns its files of tokens."""
    ends = np.arange(0, tokens.size + 1, tokens.shape[1], dtype=np.int32)
    table = pa.table({"input_ids": pa.ListArray.from_arrays(ends, pa.array(tokens.reshape(-1)))})
    pq.write_table(
        table, folder / "corpus.parquet", row_group_size=_GROUP_SEQUENCES, compression="zstd", use_dictionary=False
    )
    for name, new in (("file.arrow", pa.ipc.new_file), ("stream.arrow", pa.ipc.new_stream)):
        with new(str(folder / name), table.schema) as writer:
            writer.write_table(table, max_chunksize=_GROUP_SEQUENCES)
    shards = _write_mds(folder / "mds", tokens)
    return {
        "Parquet": ["corpus.parquet"],
        "Arrow file": ["file.arrow"],
        "Arrow stream": ["stream.arrow"],
        "MDS": [f"mds/{name}" for name in shards],
    }


def _write_mds(folder: Path, tokens: np.ndarray) -> list[str]:
    """Writes shards as MosaicML Streaming does; see `packhorse.formats.mds`."""
    folder.mkdir()
    columns = {"column_names": ["input_ids"], "column_encodings": ["ndarray:uint16"], "column_sizes": [None]}
    header = json.dumps(columns).encode()
    shards = []
    for first in range(0, len(tokens), _SHARD_SEQUENCES):
        some = tokens[first : first + _SHARD_SEQUENCES]
        # Of each: the column's size; one axis whose extent is a u16; the extent; the tokens.
        before = struct.pack("<IBH", 3 + some[0].nbytes, 5, some.shape[1])
        offsets = 8 + 4 * len(some) + len(header) + (len(before) + some[0].nbytes) * np.arange(len(some) + 1)
        name = f"shard.{len(shards):05}.mds"
        with (folder / name).open("wb") as file:
            file.write(struct.pack("<I", len(some)) + offsets.astype("<u4").tobytes() + header)
            file.writelines(before + sequence.tobytes() for sequence in some)
        raw = {"basename": name, "bytes": int(offsets[-1])}
        shards.append({"format": "mds", "samples": len(some), "raw_data": raw, "zip_data": None, **columns})
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    return [shard["raw_data"]["basename"] for shard in shards]


def _windows(num_sequences: int) -> tuple[np.ndarray, list[int]]:
    return np.arange(num_sequences), list(range(_WINDOW, num_sequences, _WINDOW))


def _read(source: TokenSource, ids: np.ndarray) -> None:
    """Gathers batch by batch, as a dataset does with a block of the stream."""
    lengths = np.full(len(ids), _SEQUENCE_TOKENS)
    out = np.empty(_BATCH * _SEQUENCE_TOKENS, np.int64)
    starts = np.arange(_BATCH) * _SEQUENCE_TOKENS
    for first in range(0, len(ids), _BLOCK_OF_IDS):
        some = ids[first : first + _BLOCK_OF_IDS]
        gather = source.gather_from(some, lengths[: len(some)])
        for begin in range(0, len(some), _BATCH):
            end = min(begin + _BATCH, len(some))
            gather(begin, end, out, starts[: end - begin])


def _row(what: str, size: str, ours: tuple[float, ...], plain: tuple[float, ...], *, target: bool) -> Row:
    sample, peer = Sample(ours, "MB/s"), Sample(plain, "MB/s")
    ratio = sample.median / peer.median
    return Row(
        what=what,
        size=size,
        ours=str(sample),
        peer=f"{peer}, one download",
        ratio=ratio,
        target="≥ 0.8×" if target else "",
        reached=ratio >= 0.8 if target else None,
    )


@contextmanager
def _serving(folder: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, str(_SERVER), str(folder), str(port)])
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()
