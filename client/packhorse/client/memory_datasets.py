"""`MemoryDatasets`: a target of `connect` that holds the lengths of datasets, to test a trainer.

Owns its arguments and their checks. Leaves planning them and answering from them to `transport/embedded`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.topology import checked_integer
from packhorse.topology.checks import quoted

_MOST_TOKENS = 2**31 - 1
"""The most tokens of a sequence or a bin: a length is an int32."""


class MemoryDatasets:
    """Datasets from lengths in memory, to test a trainer: a target of `connect`, `PackedDataset` and others.

    They give the same plans, epochs and bytes as a folder that `packhorse prepare` writes from the same lengths, with
    the same options. They can be pickled and forked; each spawned dataloader worker plans them again. Needs
    packhorse[server].

    Example:
        >>> from packhorse.client import connect
        >>> datasets = MemoryDatasets({"corpus": [5, 3, 3, 5]}, max_seq_len=8)
        >>> with connect(datasets) as client:
        ...     client.get_bins("corpus", seed=1, positions=[0]).ids
        array([3, 2])
        >>> from packhorse.client import PackedDataset
        >>> documents = [[1, 2, 3], [4, 5], [6, 7, 8]]
        >>> datasets = MemoryDatasets({"documents": documents}, max_seq_len=5)
        >>> for batch in PackedDataset(datasets, "documents", documents, batch_size=1, seed=2):
        ...     print(batch["input_ids"].tolist())
        [[1, 2, 3, 4, 5]]
        [[6, 7, 8, 0, 0]]

    Args:
        datasets: name → int [S], lengths in tokens, or the tokens of S sequences. A sequence's id is its index.
        max_seq_len: a bin's capacity in tokens.
        algorithm: as in `prepare`; the default best-fit is fast and needs no other package.
        over_length: what happens to a sequence that does not fit a bin, as in `prepare`.
        keep: which end of a truncated sequence stays.
        max_sequences_per_bin: the most sequences in a bin; None for no limit.
        align: a sequence's room is a multiple of this many tokens.
        extra_tokens: tokens that each sequence takes besides its own (BOS, EOS); -1 leaves out the last token.
        group_size: the number of consecutive sequences that share a bin; None for no groups.

    Raises:
        ValueError: a name, a length or `max_seq_len` is invalid; `connect` checks the other options.
    """

    def __init__(
        self,
        datasets: Mapping[str, ArrayLike | Sequence[ArrayLike]],
        *,
        max_seq_len: int,
        algorithm: str = "best-fit",
        over_length: Literal["error", "drop", "truncate", "split"] = "error",
        keep: Literal["head", "tail"] = "head",
        max_sequences_per_bin: int | None = None,
        align: int = 1,
        extra_tokens: int = 0,
        group_size: int | None = None,
    ) -> None:
        if not isinstance(datasets, Mapping) or not datasets:
            raise ValueError(f"datasets must be a dict from name to lengths or tokens, got {quoted(datasets)}")
        self.lengths: dict[str, NDArray[np.int32]] = {
            _checked_name(name): _lengths_of(name, given) for name, given in datasets.items()
        }
        self.options: dict[str, Any] = {
            "max_seq_len": checked_integer("max_seq_len", max_seq_len, 1, _MOST_TOKENS),
            "algorithm": algorithm,
            "over_length": over_length,
            "keep": keep,
            "max_sequences_per_bin": max_sequences_per_bin,
            "align": align,
            "extra_tokens": extra_tokens,
            "group_size": group_size,
        }

    def __repr__(self) -> str:
        counts = ", ".join(f"{name}: {len(lengths):,} sequences" for name, lengths in self.lengths.items())
        return f"MemoryDatasets({counts}; max_seq_len={self.options['max_seq_len']})"

    @property
    def key(self) -> tuple[object, ...]:
        """A tuple of all lengths and options, equal for equal datasets: by it, a process finds what it has planned."""
        lengths = ((name, lengths.tobytes()) for name, lengths in self.lengths.items())
        return (*lengths, *self.options.items())


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name or name.startswith(".") or not name.isprintable() or "/" in name:
        raise ValueError(f"datasets has the name {quoted(name)}; a name is a word without slashes, such as 'corpus'")
    return name


def _lengths_of(name: str, given: Any) -> NDArray[np.int32]:
    """Returns a dataset's lengths, int32 [S], of a list of lengths or of sequences of tokens."""
    expected = "a list of lengths in tokens, each at least 1, or of the sequences' tokens"
    if isinstance(given, str | bytes | Mapping) or not hasattr(given, "__len__"):
        raise ValueError(f"datasets[{name!r}] must be {expected}, got {quoted(given)}")
    items = list(given)
    try:
        sizes = [len(item) if hasattr(item, "__len__") else item for item in items]
        lengths = [checked_integer("a length", size, 1, _MOST_TOKENS) for size in sizes]
    except (TypeError, ValueError) as error:
        raise ValueError(f"datasets[{name!r}] must be {expected}: {error}") from None
    return np.array(lengths, dtype=np.int32)
