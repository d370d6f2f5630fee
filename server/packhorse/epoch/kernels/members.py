"""The compiled loops of groups: from groups' numbers to their members.

Owns what `GroupedSource.bins` runs without the GIL; every array is documented in `groups`.
"""

from typing import Any

import numpy as np

from packhorse.compiling import kernel


@kernel
def fill_ends(table: Any, numbers: Any, packed_ends: Any, bin_ends_out: Any) -> int:
    """Writes where each bin of groups ends among their members, and returns how many members there are."""
    end = 0
    first = 0
    for b in range(len(packed_ends)):
        for i in range(first, packed_ends[b]):
            number = np.int64(numbers[i])
            end += table[number, 1] - (table[number - 1, 1] if number else 0)
        first = packed_ends[b]
        bin_ends_out[b] = end
    return end


@kernel
def expand(
    table: Any,
    members: Any,
    align: Any,
    extra_tokens: Any,
    numbers: Any,
    ids_out: Any,
    lengths_out: Any,
    groups_out: Any,
) -> None:
    """Writes the ids, rooms and groups of all members of some groups, group after group."""
    at = 0
    for i in range(len(numbers)):
        number = np.int64(numbers[i])
        for member in range(table[number - 1, 1] if number else 0, table[number, 1]):
            ids_out[at] = members[member, 0]
            lengths_out[at] = (members[member, 1] + extra_tokens + align - 1) // align * align
            groups_out[at] = table[number, 0]
            at += 1
