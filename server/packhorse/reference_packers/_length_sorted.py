"""Next-fit after sorting by length: only one bin is open at a time."""

from collections import Counter

from packhorse.packing import Template


def length_sorted(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs longest first into one open bin; a sequence that does not fit closes it and opens the next.

    For the arguments, see `REFERENCE_PACKERS`.
    """
    templates: Counter[Template] = Counter()
    current: list[int] = []
    room = capacity
    for length, count in pairs:
        copies = min(count, room // length, limit - len(current))
        current.extend([length] * copies)
        room -= copies * length
        left = count - copies
        if left:  # then the open bin is not empty: an empty one takes at least one
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
