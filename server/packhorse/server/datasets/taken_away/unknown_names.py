"""Ids and keys that a redaction names and its dataset does not have: a typing error, or those of another dataset.

Owns finding and listing them. `takedowns` warns of them, and `packhorse redact` asks before it writes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import MixtureDataset, Redaction
from packhorse.formats.keys import shown_key
from packhorse.server.datasets.protocols import Dataset

_MOST_NAMED, _MOST_CHARACTERS = 10, 200
"""Most ids, and most keys, that a message lists, and most characters of a key."""


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
        ids = [str(number) for number in self.ids[:_MOST_NAMED].tolist()]
        keys = [shown_key(key)[:_MOST_CHARACTERS] for key in self.keys[:_MOST_NAMED]]
        lists = (_listed("ids", ids, len(self.ids)), _listed("keys", keys, len(self.keys)))
        return " and ".join(filter(None, lists))


def _listed(noun: str, shown: list[str], num_all: int) -> str:
    more = f" and {num_all - len(shown):,} more" if num_all > len(shown) else ""
    return f"{noun} {', '.join(shown)}{more}" if shown else ""


def unknown_names(dataset: Dataset, redaction: Redaction, *, most: int | None = None) -> UnknownNames:
    """Returns the ids and keys in a redaction that its dataset, or its component of a mixture, does not have.

    With `most`, only this many ids are looked up, the lowest.
    """
    resolved, unknown_keys = redaction.resolved(dataset.key_tables[redaction.component])
    if isinstance(dataset, MixtureDataset):
        dataset = next(each for each in dataset.datasets if each.name == redaction.component)
    ids = resolved.ids[:most]
    locations = dataset.epoch(0, 0).locate(ids)  # every epoch has the same ids; the length of an unknown one is -1
    return UnknownNames(np.setdiff1d(ids, locations.ids[locations.lengths >= 0]), unknown_keys)
