"""Ids and keys that a redaction names and its dataset does not have: somebody's typing error, or another dataset's.

Owns finding and listing them. `takedowns` warns of them, and `packhorse redact` asks before it writes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import MixtureDataset, Redaction
from packhorse.formats.keys import shown_key
from packhorse.server.datasets.protocols import Dataset

_MOST_NAMED = 10
"""Most ids, and most keys, that a message lists."""


@dataclass(frozen=True, slots=True, eq=False)
class UnknownNames:
    """Ids and keys that a dataset does not have.

    Example:
        >>> str(UnknownNames(np.arange(12), ["a"])), len(UnknownNames(np.arange(12), ["a"]))
        ('ids 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more and keys a', 13)
    """

    ids: NDArray[np.int64]
    """int64 [n], ascending."""
    keys: Sequence[str]

    def __len__(self) -> int:
        return len(self.ids) + len(self.keys)

    def __str__(self) -> str:
        keys = [shown_key(key)[:200] for key in self.keys[:_MOST_NAMED]]
        named = (("ids", self.ids, map(str, self.ids[:_MOST_NAMED].tolist())), ("keys", self.keys, keys))
        return " and ".join(
            f"{noun} {', '.join(first)}" + (f" and {len(some) - _MOST_NAMED:,} more" if len(some) > _MOST_NAMED else "")
            for noun, some, first in named
            if len(some)
        )


def unknown_names(dataset: Dataset, redaction: Redaction, *, most: int | None = None) -> UnknownNames:
    """Returns the names in a redaction that its dataset, or its component of a mixture, does not have.

    With `most`, only this many ids are looked up, the lowest.
    """
    resolved, keys = redaction.resolved(dataset.key_tables[redaction.component])
    if isinstance(dataset, MixtureDataset):
        dataset = next(each for each in dataset.datasets if each.name == redaction.component)
    ids = resolved.ids[:most]
    locations = dataset.epoch(0, 0).locate(ids)
    return UnknownNames(np.setdiff1d(ids, locations.ids[locations.lengths >= 0]), keys)
