"""Any object that answers `indexable[id]`, as a source.

Owns telling which part of an item holds the tokens, and refusing what is none; leaves copying to `fetched` and `base`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.client.sources.base import TokenSourceError, as_integers
from packhorse.client.sources.fetched import FetchSource


class IndexableSource(FetchSource):
    """Tokens of any object that answers `indexable[id]`: a list, a dict, a map-style dataset.

    An item is a 1-D tensor, array or list of integers or, with `key`, a mapping that holds one under that key. Whether
    it survives fork and spawn is up to the object.
    """

    def __init__(self, indexable: Any, *, key: str | None = None) -> None:
        """Wraps the object.

        Args:
            indexable: has `__getitem__`, taking ids.
            key: where the tokens are in each item, for items that are mappings (`"input_ids"`).

        Raises:
            TokenSourceError: the object cannot be indexed.
        """
        super().__init__()
        if not hasattr(indexable, "__getitem__"):
            raise TokenSourceError(
                f"a token source needs `source[id]`, which {type(indexable).__name__} does not offer; "
                "wrap it in an object with __getitem__, or subclass TokenSource"
            )
        self._indexable = indexable
        self._key = key

    def _fetch(self, ids: NDArray[np.int64]) -> list[NDArray[np.integer]]:
        return [as_integers(sequence_id, self._item(sequence_id)) for sequence_id in ids.tolist()]

    def _item(self, sequence_id: int) -> Any:
        # A list would take -1 for its last item.
        if sequence_id < 0 and not isinstance(self._indexable, Mapping):
            raise TokenSourceError(f"no sequence with id {sequence_id}: ids of an indexable source begin at 0")
        try:
            item = self._indexable[sequence_id]
        except (KeyError, IndexError) as error:
            raise TokenSourceError(
                f"{type(self._indexable).__name__} has no sequence with id {sequence_id}; "
                "use the data that the dataset was prepared from"
            ) from error
        if self._key is not None:
            try:
                return item[self._key]
            except (KeyError, IndexError, TypeError) as error:
                raise TokenSourceError(f"sequence {sequence_id}: its item has no key {self._key!r}") from error
        if isinstance(item, Mapping):
            raise TokenSourceError(
                f"sequence {sequence_id}: its item is a mapping with keys {sorted(map(str, item))}; "
                "name the one that holds the tokens with IndexableSource(..., key=...)"
            )
        return item
