"""Balanced packing: as few bins as hold everything when they are filled evenly.

Owns the packer for plans with a limit of sequences in a bin. There, what counts is that short sequences are left for
bins with few long ones; filling one bin after the other, as best-fit does, leaves bins of long sequences half empty and
runs into the limit with short ones.
"""

from collections import Counter

from packhorse.packing.bin_groups import Dealer
from packhorse.packing.bounds import bound_of_pairs
from packhorse.packing.plan import Template
from packhorse.packing.reference.worst_fit import most_room


def balanced(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs (length, count) pairs into a number of bins that is found by bisection, beginning at the lower bound.

    All bins are open from the start. Each sequence, longest first, goes into the emptiest bin that has fewer than
    `limit`; where one fits nowhere, there are too few bins. Equal bins move as one (see `Dealer`), so the time does not
    grow with the number of sequences.

    Args:
        pairs: (length, count) by descending length, as `checked_counts` returns them.
        capacity: max_seq_len, in tokens.
        limit: the most sequences in a bin.

    Returns:
        Template → multiplicity.
    """
    too_few = bound_of_pairs(pairs, capacity, limit) - 1
    step = 1
    while (found := _into(too_few + step, pairs, capacity, limit)) is None:
        too_few += step
        step *= 2
    enough = too_few + step
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        templates = _into(middle, pairs, capacity, limit)
        if templates is None:
            too_few = middle
        else:
            enough, found = middle, templates
    return found


def _into(num_bins: int, pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template] | None:
    """Fills so many bins evenly; None where they do not hold everything."""
    dealer = Dealer(limit, most_room)
    dealer.open_bins(num_bins, capacity)
    if any(dealer.deal(length, count) for length, count in pairs):
        return None
    return dealer.templates()
