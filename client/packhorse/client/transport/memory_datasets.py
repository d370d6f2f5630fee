"""`MemoryDatasets`: datasets that live in this process, for tests of a trainer without a server or a folder.

Owns what a user gives; leaves planning to the server's packages, which `transport.embedded` reaches.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.client.transport.requests import shortened
from packhorse.topology import checked_integer


class MemoryDatasets:
    """Datasets from lengths at hand. `connect` and `PackedDataset` take it wherever they take a target.

    Plans, epochs and bytes are those of a folder that `packhorse prepare` wrote from the same lengths with the same
    options. It pickles and forks: dataloader workers plan it again, each for itself. Needs packhorse[server].

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
        datasets: name → int [S], the sequences' lengths in tokens, or their tokens, as a list of S lists or arrays. A
            sequence's id is its index.
        max_seq_len: a bin's capacity in tokens.
        algorithm: as in `prepare`; best-fit by default, which takes no time and needs no other package.
        over_length: what is done with a sequence that does not fit a bin, as in `prepare`.
        keep: which end of a truncated sequence stays.
        max_sequences_per_bin: the most sequences in a bin; None for no limit.
        align: a sequence's room is a multiple of this many tokens.
        extra_tokens: tokens kept free for each sequence beside its own (BOS, EOS).
        group_size: this many consecutive sequences share a bin; None for no groups.

    Raises:
        ValueError: a name or a length is none; options are checked by `connect`.
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
            raise ValueError(f"datasets must be a dict from name to lengths or tokens, got {shortened(datasets)}")
        self.lengths: dict[str, NDArray[np.int32]] = {
            _checked_name(name): _lengths_of(name, given) for name, given in datasets.items()
        }
        self.options: dict[str, Any] = {
            "max_seq_len": checked_integer("max_seq_len", max_seq_len, 1, 2**31 - 1),
            "algorithm": algorithm,
            "over_length": over_length,
            "keep": keep,
            "max_sequences_per_bin": max_sequences_per_bin,
            "align": align,
            "extra_tokens": extra_tokens,
            "group_size": group_size,
        }

    def __repr__(self) -> str:
        """Names the datasets and how many sequences each has."""
        counts = ", ".join(f"{name}: {len(lengths):,} sequences" for name, lengths in self.lengths.items())
        return f"MemoryDatasets({counts}; max_seq_len={self.options['max_seq_len']})"

    @property
    def key(self) -> tuple[object, ...]:
        """Equal where the datasets are."""
        lengths = ((name, lengths.tobytes()) for name, lengths in self.lengths.items())
        return (*lengths, *self.options.items())


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name or name.startswith(".") or not name.isprintable() or "/" in name:
        raise ValueError(f"datasets has the name {shortened(name)}; a name is a word without slashes, such as 'corpus'")
    return name


def _lengths_of(name: str, given: Any) -> NDArray[np.int32]:
    """Returns lengths, given as they are or as tokens."""
    wanted = "a list of lengths in tokens, each at least 1, or of the sequences' tokens"
    if isinstance(given, str | bytes | Mapping) or not hasattr(given, "__len__"):
        raise ValueError(f"datasets[{name!r}] must be {wanted}, got {shortened(given)}")
    items = list(given)
    try:
        sizes = [len(item) if hasattr(item, "__len__") else item for item in items]
        lengths = [checked_integer("a length", size, 1, 2**31 - 1) for size in sizes]
    except (TypeError, ValueError) as error:
        raise ValueError(f"datasets[{name!r}] must be {wanted}: {error}") from None
    return np.array(lengths, dtype=np.int32)
