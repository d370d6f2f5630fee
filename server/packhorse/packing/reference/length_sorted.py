"""Length-sorted packing: next-fit after sorting, longest first.

Owns the packer on histograms; `next_fit` is the one that keeps the order given.
"""

from collections import Counter

from packhorse.packing.plan import Template


def length_sorted(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs (length, count) pairs: one bin is open, and closed for good by the first sequence that does not fit.

    Args:
        pairs: (length, count) by descending length, as `checked_counts` returns them.
        capacity: max_seq_len, in tokens.
        limit: the most sequences in a bin.

    Returns:
        Template → multiplicity.
    """
    templates: Counter[Template] = Counter()
    current: list[int] = []
    room = capacity
    for length, count in pairs:
        copies = min(count, room // length, limit - len(current))
        current.extend([length] * copies)
        room -= copies * length
        left = count - copies
        if left:  # the pairs begin with an empty bin, and that takes at least one
            templates[tuple(current)] += 1
            per_bin = min(capacity // length, limit)
            num_full = (left - 1) // per_bin  # the last bin stays open, full or not
            if num_full:
                templates[(length,) * per_bin] += num_full
            current = [length] * (left - num_full * per_bin)
            room = capacity - len(current) * length
    if current:
        templates[tuple(current)] += 1
    return templates
