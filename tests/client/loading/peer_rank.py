"""The four ranks of `test_peers`, forked once all is imported: each writes what it saw as JSON."""

import hashlib
import json
import multiprocessing
import os
import sys
import warnings
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from packhorse.client import BatchFormat, LoaderOptions, create_packed_dataloader
from packhorse.client.sources import MegatronSource, TokenSource, TokenSourceError
from packhorse.formats import MegatronWriter
from packhorse.prepare import PlanOptions, prepare


class Counting(TokenSource):
    """The corpus, and how often it was asked; it fails from some request on."""

    def __init__(self, path, fails_after=1 << 60):
        self.source, self.num_read, self.fails_after = MegatronSource(path), 0, fails_after

    def read(self, sequence_id, start=0, length=None):
        self.num_read += 1
        if self.num_read > self.fails_after:
            raise TokenSourceError("the disk is gone")
        return self.source.read(sequence_id, start, length)


def digest_of(batch):
    """Keys, types, shapes and values of a batch, cursor and layout included."""
    sha = hashlib.sha256()
    for key, value in sorted(batch.items()):
        if isinstance(value, torch.Tensor):
            sha.update(f"{key} {value.dtype} {tuple(value.shape)}".encode() + value.numpy().tobytes())
        elif key == "layout":
            sha.update(value.lengths.tobytes() + value.starts.tobytes())
        else:
            sha.update(f"{key} {value}".encode())
    return sha.hexdigest()


def main(folder, rank):
    """Goes through the cases."""
    warnings.simplefilter("ignore")
    corpus = folder / f"corpus-{rank}"  # each its own: the ranks begin at different times
    with MegatronWriter(corpus, vocab_size=100) as writer:
        for length in np.random.default_rng(1).integers(1, 30, 200):
            writer.append(np.arange(length) + length)
    prepare(f"{corpus}.idx", output=folder / f"root-{rank}" / "words", plan=PlanOptions(max_seq_len=64))
    target, tokens = f"embedded:{folder / f'root-{rank}'}", f"{corpus}.idx"
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    data_rank = mesh["dp"].get_local_rank(), 2

    def loader(tokens=tokens, *, shared=True, seed=1, num_workers=0, **options):
        return create_packed_dataloader(
            target,
            "words",
            tokens,
            batch_size=2,
            seed=seed,
            loader=LoaderOptions(
                num_workers=num_workers,
                rank=data_rank,
                device="cpu",
                peers=mesh["tp"] if shared else None,
                multiprocessing_context="fork" if num_workers else None,
            ),
            **options,
        )

    def digests(loader):
        with loader:
            return [digest_of(batch) for batch in loader]

    found = {}
    for name, options in {
        "rows": {},
        "preset": {"preset": "padding-free"},
        "workers": {"num_workers": 1, "batch": BatchFormat(shift_labels=True)},
    }.items():
        alone = digests(loader(shared=False, **options | {"num_workers": 0}))
        found[name] = {"alone": alone, "shared": digests(loader(**options))}

    counting = Counting(tokens)
    digests(loader(counting))
    found["num_read"] = counting.num_read

    begun = loader()
    list(islice(begun, 2))
    found["state"] = begun.state_dict()
    resumed = loader()
    resumed.load_state_dict(found["state"])
    found["resumed"] = digests(resumed)

    left = loader()
    found["left"] = [[digest_of(batch) for batch in islice(left, 2)] for _ in range(2)]

    found["failure"] = error_of(lambda: digests(loader(Counting(tokens, fails_after=40))))
    found["disagreement"] = error_of(lambda: digests(loader(seed=1 + mesh["tp"].get_local_rank())))
    found["mesh"] = error_of(
        lambda: create_packed_dataloader(
            target, "words", tokens, batch_size=1, loader=LoaderOptions(rank=data_rank, peers=mesh)
        )
    )
    dist.barrier()
    dist.destroy_process_group()
    (folder / f"found-{rank}.json").write_text(json.dumps(found))


def error_of(work):
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}".removeprefix("ValueError: ")
    return ""


if __name__ == "__main__":
    for name in ("RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")  # torch takes seconds to import
    ranks = [context.Process(target=main, args=(Path(sys.argv[1]), rank)) for rank in range(4)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(max(abs(process.exitcode) for process in ranks))
