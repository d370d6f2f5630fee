"""A rank of `bench_decoded`: a process that imports what a trainer imports, and no more.

It says "ready" after its first batch, waits for a line, reads on, and prints its figures as JSON; it ends at a second
line, so that no rank's workers are gone before all are measured.
"""

import json
import multiprocessing
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from packhorse.client import LoaderOptions, create_packed_dataloader
from packhorse.client.sources import StoreCache, TokenSource, as_token_source


def main(folder: Path, kind: str, rank: int, num_ranks: int, num_workers: int, num_batches: int) -> None:
    """Reads one batch, then `num_batches` with each worker."""
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # of more workers than cores
    options = LoaderOptions(num_workers=num_workers, rank=(rank, num_ranks), device="cpu")
    loader = create_packed_dataloader(
        f"embedded:{folder / 'root'}", "corpus", _tokens(folder, kind), batch_size=8, loader=options
    )
    batches = _endless(loader)
    next(batches)
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.time()
    for _ in range(num_workers * num_batches):
        next(batches)
    ended = time.time()
    private = [_private_mb(process.pid) for process in multiprocessing.active_children()]
    assert len(private) == num_workers
    print(json.dumps({"private_mb": fmean(private), "began": began, "ended": ended}), flush=True)
    sys.stdin.readline()
    loader.close()


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def _tokens(folder: Path, kind: str) -> TokenSource:
    if kind == "megatron":
        return as_token_source(folder / "corpus.idx")
    store = StoreCache(cache_folder=folder / "cache", keeps_decoded=kind == "decoded")
    return as_token_source(folder / "corpus.parquet", store=store)


def _private_mb(pid: int | None) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:")) * 1024 / 1e6


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
