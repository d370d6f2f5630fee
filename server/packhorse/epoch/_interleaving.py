"""Bins of several parts, each put where it belongs: what sources made of sources answer with.

Owns the compiled copy.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from packhorse.epoch.bins import Bins, joined


def interleaved(parts: Sequence[Bins], places: Sequence[NDArray[np.int64]], positions: NDArray[np.int64]) -> Bins:
    """Returns the bins of all parts in a new order.

    Args:
        parts: bins; where some have first_tokens, those of the others begin at token 0.
        places: for each part, where its bins stand among the N of all: int64 [bins of the part].
        positions: what the bins' positions are then: int64 [N].
    """
    if _is_in_order(places):
        return replace(parts[0] if len(parts) == 1 else joined(parts), positions=positions)
    has_first_tokens = any(part.first_tokens is not None for part in parts)
    has_group_ids = any(part.group_ids is not None for part in parts)
    has_dataset_ids = any(part.dataset_ids is not None for part in parts)
    has_templates = any(part.templates is not None for part in parts)
    sizes = np.zeros(len(positions), dtype=np.int64)
    dataset_ids = np.zeros(len(positions), dtype=np.int32) if has_dataset_ids else None
    templates = np.full(len(positions), -1) if has_templates else None
    for part, where in zip(parts, places, strict=True):
        sizes[where] = part.sizes()
        if dataset_ids is not None and part.dataset_ids is not None:
            dataset_ids[where] = part.dataset_ids
        if templates is not None and part.templates is not None:
            templates[where] = part.templates
    bin_ends = np.cumsum(sizes)
    begins = bin_ends - sizes
    total = int(bin_ends[-1]) if len(bin_ends) else 0
    ids = np.empty(total, dtype=np.result_type(*(part.ids for part in parts)))
    lengths = np.empty(total, dtype=np.int32)
    first_tokens = np.zeros(total, dtype=np.int64) if has_first_tokens else None
    group_ids = np.full(total, -1) if has_group_ids else None
    for part, where in zip(parts, places, strict=True):
        _scatter(part.ids, part.lengths, part.bin_ends, begins, where, ids, lengths)
        if first_tokens is not None and part.first_tokens is not None:
            _scatter(part.first_tokens, part.lengths, part.bin_ends, begins, where, first_tokens, lengths)
        if group_ids is not None and part.group_ids is not None:
            _scatter(part.group_ids, part.lengths, part.bin_ends, begins, where, group_ids, lengths)
    return Bins(
        ids=ids,
        lengths=lengths,
        bin_ends=bin_ends,
        positions=positions,
        first_tokens=first_tokens,
        dataset_ids=dataset_ids,
        templates=templates,
        group_ids=group_ids,
    )


def _is_in_order(places: Sequence[NDArray[np.int64]]) -> bool:
    """Whether the parts stand one after the other as they are."""
    begin = 0
    for where in places:
        if len(where) and not (where[0] == begin and (np.diff(where) == 1).all()):
            return False
        begin += len(where)
    return True


@numba.njit(nogil=True, cache=True)
def _scatter(values: Any, lengths: Any, ends: Any, begins: Any, places: Any, values_out: Any, lengths_out: Any) -> None:
    """Copies what belongs to each bin of a part to where the bin begins among all."""
    start = np.uint64(0)  # unsigned, so that no index is checked for being below 0
    for b in range(len(ends)):
        to, end = np.uint64(begins[places[b]]), np.uint64(ends[b])
        while start < end:
            values_out[to] = values[start]
            lengths_out[to] = lengths[start]
            start += np.uint64(1)
            to += np.uint64(1)
