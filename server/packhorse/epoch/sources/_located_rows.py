"""Where ids are in a mixture, as a table: rows that components found, joined and ordered as `Locations` needs them.

Owns which rows are dropped because a better one of the same piece is there. Leaves finding ids to the components, and
turning their positions into those of the mixture to `mixture_epoch`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from packhorse.epoch.sources.source import Locations

_WHICH, _COMPONENT, _FIRST_TOKEN, _LENGTH, _POSITION, _INDEX_IN_BIN = range(6)
"""Fields of the table, int64 [6, rows]. The first is the index of the id among the distinct ids that are looked up; the
others are as in `Locations`."""


def rows_of_missing(unique: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns a row for each distinct id, as if no component had it: int64 [6, n].

    `joined_locations` drops those of ids that a component has.
    """
    rows = np.full((6, len(unique)), -1, dtype=np.int64)
    rows[_WHICH] = np.arange(len(unique))
    return rows


def rows_of(
    unique: NDArray[np.int64], found: Locations, component_ids: NDArray[np.int64], positions: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Returns what a component found as rows of the table: int64 [6, rows].

    Args:
        unique: the distinct ids, ascending: int64 [n].
        found: locations of these ids in an epoch of the component.
        component_ids: the mixture's component of each location: int64 [rows].
        positions: the mixture's position of each location, -1 if it is not in the mixture's epoch: int64 [rows].
    """
    which = np.searchsorted(unique, found.ids)
    index_in_bin = np.where(positions < 0, -1, found.index_in_bin)
    return np.stack((which, component_ids, found.first_tokens, found.lengths, positions, index_in_bin))


def joined_locations(
    parts: Sequence[NDArray[np.int64]], unique: NDArray[np.int64], which_of: NDArray[np.int64]
) -> Locations:
    """Returns the rows of all parts as locations, in the order of the ids asked for.

    Args:
        parts: tables, which together have a row of every distinct id.
        unique: the distinct ids, ascending: int64 [n].
        which_of: index in `unique` of each id asked for.
    """
    rows = _without_superseded(np.concatenate(parts, axis=1))
    sizes = np.bincount(rows[_WHICH], minlength=len(unique))[which_of]
    ends = np.cumsum(sizes)
    # Ids asked for whose rows begin at [3, 0], with [2, 1] of them, get the rows [3, 4, 0].
    begins = np.searchsorted(rows[_WHICH], which_of)
    rows = rows[:, np.repeat(begins - (ends - sizes), sizes) + np.arange(int(sizes.sum()))]
    return Locations(
        ids=unique[rows[_WHICH]],
        component_ids=rows[_COMPONENT],
        first_tokens=rows[_FIRST_TOKEN],
        lengths=rows[_LENGTH],
        positions=rows[_POSITION],
        index_in_bin=rows[_INDEX_IN_BIN],
    )


def _without_superseded(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sorts rows by (id, component, first token, position), and drops those that another one makes needless.

    These are an id's row without a component if it has another row, and a piece's row without a position if the piece
    has another row. What is missing is -1 and so comes first: a row is needless if the next is of the same id or piece.
    """
    rows = rows[:, np.lexsort((rows[_POSITION], rows[_FIRST_TOKEN], rows[_COMPONENT], rows[_WHICH]))]
    is_of_same_id, is_of_same_component, is_of_same_piece = np.zeros((3, rows.shape[1]), dtype=bool)  # as the next row
    is_of_same_id[:-1] = rows[_WHICH, 1:] == rows[_WHICH, :-1]
    is_of_same_component[:-1] = is_of_same_id[:-1] & (rows[_COMPONENT, 1:] == rows[_COMPONENT, :-1])
    is_of_same_piece[:-1] = is_of_same_component[:-1] & (rows[_FIRST_TOKEN, 1:] == rows[_FIRST_TOKEN, :-1])
    return rows[:, ~(((rows[_COMPONENT] < 0) & is_of_same_id) | ((rows[_POSITION] < 0) & is_of_same_piece))]
