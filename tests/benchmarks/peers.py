"""Other packages' packers, each as a number of bins for a list of lengths.

Owns how each is called at its best (TRL on the whole dataset at once, not on its batches of 1,000); a package that is
not installed gives no packers, and its name is in `missing()`.
"""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

Peer = Callable[[Sequence[int], int], int]
"""(lengths, max_seq_len) → number of bins."""

PACKAGES = ("seqpack", "lightbinpack", "trl")


def installed(package: str) -> bool:
    """Whether a package of `PACKAGES`, and what it needs to pack, can be imported."""
    return all(importlib.util.find_spec(name) for name in ((package, "datasets") if package == "trl" else (package,)))


def missing() -> str:
    """Names what is not installed, in words; empty where all is."""
    absent = [package for package in PACKAGES if not installed(package)]
    return f"{', '.join(absent)}: not installed" if absent else ""


def for_millions() -> dict[str, Peer]:
    """Packers that take a million sequences in seconds."""
    peers: dict[str, Peer] = {}
    if installed("lightbinpack"):
        peers |= {f"lightbinpack {name}": partial(_lightbinpack, name) for name in ("obfd", "nf")}
    if installed("seqpack"):
        peers |= {"seqpack batched": seqpack_batched, "seqpack heap": seqpack_heap}
    return peers


def for_thousands() -> dict[str, Peer]:
    """Packers that take up to a hundred thousand."""
    peers: dict[str, Peer] = {}
    if installed("lightbinpack"):
        peers |= {f"lightbinpack {name}": partial(_lightbinpack, name) for name in ("ffd", "bfd", "obfdp", "ogbfd")}
    if installed("trl"):
        peers["TRL bfd"] = partial(_trl, "bfd")
    return peers


def for_hundreds() -> dict[str, Peer]:
    """Packers that look at every bin for every sequence, in Python."""
    return {"seqpack greedy": _seqpack_greedy} if installed("seqpack") else {}


def trl_wrapped(lengths: Sequence[int], max_seq_len: int) -> int:
    """Number of rows of TRL's "wrapped", which cuts sequences apart: no packer of whole sequences."""
    return _trl("wrapped", lengths, max_seq_len)


def lightbinpack_obfd(lengths: Sequence[int], max_seq_len: int) -> int:
    """The fastest of lightbinpack that keeps best-fit's bins."""
    return _lightbinpack("obfd", lengths, max_seq_len)


def seqpack_heap(lengths: Sequence[int], max_seq_len: int) -> int:
    """Worst-fit-decreasing on a list."""
    import seqpack

    return len(seqpack.heap_pack_sequences(lengths, max_seq_len))


def seqpack_batched(lengths: Sequence[int], max_seq_len: int) -> int:
    """Batched worst-fit-decreasing on the list's histogram."""
    distinct, counts = np.unique(np.asarray(lengths), return_counts=True)
    return seqpack_batched_of_counts(dict(zip(distinct.tolist(), counts.tolist(), strict=True)), max_seq_len)


def seqpack_batched_of_counts(counts: Mapping[int, int], max_seq_len: int) -> int:
    """The same on a histogram."""
    import seqpack

    return sum(seqpack.pack_length_histogram_batched(counts, max_seq_len).values())


def _seqpack_greedy(lengths: Sequence[int], max_seq_len: int) -> int:
    import seqpack

    return len(seqpack.greedy_pack_sequences(lengths, max_seq_len))


def _lightbinpack(name: str, lengths: Sequence[int], max_seq_len: int) -> int:
    import lightbinpack

    return len(getattr(lightbinpack, name)(lengths, max_seq_len))


def _trl(strategy: str, lengths: Sequence[int], max_seq_len: int) -> int:
    import datasets
    import pyarrow as pa
    from trl import pack_dataset

    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    tokens = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.zeros(offsets[-1], dtype=np.int8)))
    datasets.disable_progress_bars()
    dataset = datasets.Dataset(pa.table({"input_ids": tokens}))
    return len(pack_dataset(dataset, max_seq_len, strategy, {"batch_size": None, "keep_in_memory": True}))
