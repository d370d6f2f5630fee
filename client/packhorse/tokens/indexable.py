"""`IndexableSource`: tokens of any object that is indexed by id, such as a list, a dict or a map-style dataset.

Owns what an item may be. Recognising such objects is in `choose`.
"""

from collections.abc import Mapping, Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.tokens.base import TokenSourceError
from packhorse.tokens.fetched import FetchSource
from packhorse.tokens.integers import as_integers
from packhorse.tokens.tables.row_lookup import refuse_row_numbers


class IndexableSource(FetchSource):
    """Tokens of any object that answers `indexable[id]`: a list, a dict, a map-style dataset.

    An item is a 1-D tensor, array or list of integers or, with `key`, a mapping that holds one under that key. The
    object itself must survive fork and pickling, to reach DataLoader workers.

    Example:
        >>> IndexableSource([{"input_ids": [1, 2]}, {"input_ids": [3]}], key="input_ids").read(1).tolist()
        [3]
    """

    def __init__(
        self, indexable: Any, *, key: str | None = None, by_id: bool | None = None, takes_bool: bool = False
    ) -> None:
        """Wraps the object.

        Args:
            indexable: the object; its `__getitem__` takes ids.
            key: key of the tokens in each item, if items are mappings (`"input_ids"`).
            by_id: whether `indexable[id]` takes the dataset's ids even if they come from a column; False if it takes
                row numbers. None is True for a Mapping and False for other objects.
            takes_bool: whether True and False become 1 and 0, as in loss masks.

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
        self._by_id = isinstance(indexable, Mapping) if by_id is None else by_id
        self._takes_bool = takes_bool

    @property
    def where(self) -> str:
        """The object's type, for messages."""
        return f"the {type(self._indexable).__name__}"

    @property
    def num_sequences(self) -> int | None:
        """The object's length; None if it has none."""
        return len(self._indexable) if isinstance(self._indexable, Sized) else None

    def for_ids(self, id_column: str) -> "IndexableSource":
        """Returns itself; refuses a column's ids if the object takes row numbers; see `TokenSource.for_ids`."""
        if id_column and not self._by_id:
            refuse_row_numbers(
                self.where,
                id_column,
                "takes row numbers",
                "Pass a dict from id to tokens, or IndexableSource(..., by_id=True) if it takes these ids",
            )
        return self

    def _fetch(self, ids: NDArray[np.int64]) -> list[NDArray[np.integer]]:
        return [
            as_integers(sequence_id, self._tokens_of(sequence_id), takes_bool=self._takes_bool)
            for sequence_id in ids.tolist()
        ]

    def _tokens_of(self, sequence_id: int) -> Any:
        """Returns the tokens of one item; a TokenSourceError if there is no such item, or no such key in it."""
        # A list would give its last item for -1.
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
