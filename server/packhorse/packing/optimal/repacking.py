"""Repacking a few bins at a time, until all sequences fit into as many bins as the lower bound allows.

Owns the local search and its compiled loop. It closes the last gap of a plan in whose bins hardly a token may stay
free. Leaves filling one bin to `subset_sum`, bounds to `column_generation`.

Shape letters: S sequences, B bins.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.compiling import kernel, kernel_part
from packhorse.packing.optimal._budget import Budget
from packhorse.packing.optimal.subset_sum import fullest_subset
from packhorse.packing.plan import Template

MOST_SEQUENCES = 20_000
"""Beyond as many, one bin is a share of all that nobody notices, and the search seldom saves it."""
_MOST_OF_A_KIND = 6
"""Bins of each kind, with room and full, that are repacked together. 4 and 8 missed more of the published optima."""
_RANDOM_FIRST = 90
"""How often, in percent, a random sequence goes into a bin first instead of the longest. 50 took much longer."""
_MOST_TO_FILL = 2**28
"""Sequences × bins × words of a bitset up to which all bins are filled anew before the search: a second at most."""
_STEPS_PER_CALL = 50_000_000
"""Between two looks at the budget: less than 0.1 s."""
_SEED = 0x9E3779B97F4A7C15


class Repacking:
    """Sequences in bins, and a search for fewer bins.

    Each step empties a few bins with room and a few full ones, and fills them again one after the other: a random
    sequence, and the others that leave the least room beside it. The new bins stay if they are not more, and if the
    squares of their tokens add up to at least as much. So room gathers in few bins, until one of them is empty.

    Attributes:
        num_bins: bins in use.
    """

    def __init__(self, templates: Mapping[Template, int], capacity: int, limit: int) -> None:
        bins = [template for template, times in templates.items() for _ in range(times)]
        lengths = np.array([length for template in bins for length in template], dtype=np.int64)
        order = np.argsort(-lengths, kind="stable")
        self._lengths = lengths[order]  # [S], descending
        self._bin_of = np.repeat(np.arange(len(bins)), [len(template) for template in bins])[order]  # [S]
        self._tokens = np.array([sum(template) for template in bins], dtype=np.int64)  # [B], what each bin holds
        self._capacity = capacity
        self._limit = limit
        self._random = np.array([_SEED], dtype=np.uint64)
        self.num_bins = len(bins)
        if len(lengths) * len(bins) * (capacity >> 6) <= _MOST_TO_FILL:
            self._start_with_full_bins()

    def _start_with_full_bins(self) -> None:
        """Takes bins that are filled as well as possible, the longest sequence first, if these are not more."""
        label, held = np.empty_like(self._bin_of), np.zeros_like(self._tokens)
        num_bins, _ = _fill(self._lengths, self._capacity, self._limit, 0, self._random, label, held)
        if num_bins > 0:
            self._bin_of, self._tokens, self.num_bins = label, held[:num_bins].copy(), num_bins

    def search(self, target: int, budget: Budget) -> None:
        """Goes on until there are `target` bins.

        Raises:
            OutOfWorkError: the budget is spent; the bins are whole.
            OutOfTimeError: its deadline passed; the bins are whole.
        """
        while self.num_bins > target:
            most_steps = min(_STEPS_PER_CALL, budget.left)
            steps = int(
                _repack(
                    self._lengths, self._bin_of, self._tokens, self._capacity, self._limit, self._random, most_steps
                )
            )
            used = np.flatnonzero(self._tokens)
            if len(used) < self.num_bins:
                self._bin_of = np.searchsorted(used, self._bin_of)
                self._tokens = self._tokens[used]
                self.num_bins = len(used)
            budget.spend(steps)

    def templates(self) -> Counter[Template]:
        """Returns template → multiplicity."""
        bins: defaultdict[int, list[int]] = defaultdict(list)
        for number, length in zip(self._bin_of.tolist(), self._lengths.tolist(), strict=True):
            bins[number].append(length)
        return Counter(map(tuple, bins.values()))


def compile_kernels() -> None:
    """Compiles, or loads from the cache, what repacking runs: about 5 s of processor time the first time."""
    lengths, bins, tokens = (np.array(each, dtype=np.int64) for each in ([5, 4, 3], [0, 0, 1], [9, 3]))
    _repack(lengths, bins, tokens, 12, 3, np.array([_SEED], dtype=np.uint64), 1)


@kernel
def _repack(
    lengths: NDArray[np.int64],
    bin_of: NDArray[np.int64],
    tokens: NDArray[np.int64],
    capacity: int,
    limit: int,
    random: NDArray[np.uint64],
    most_steps: int,
) -> int:
    """Repacks bins until one of them is empty, or the steps are done; returns how many.

    Args:
        lengths: int64 [S], descending.
        bin_of: int64 [S], each sequence's bin; changed.
        tokens: int64 [B], what each bin holds; changed, 0 for an empty bin.
        capacity: of a bin.
        limit: the most sequences in a bin.
        random: uint64 [1], the state of the generator; changed.
        most_steps: about a nanosecond each.
    """
    is_chosen = np.zeros(len(tokens), np.bool_)
    chosen = np.empty(2 * _MOST_OF_A_KIND, np.int64)
    items = np.empty(len(lengths), np.int64)  # of the chosen bins, by ascending index, so by descending length
    label = np.empty(len(lengths), np.int64)  # the new bin of each item, counted within the chosen
    held = np.empty(2 * _MOST_OF_A_KIND, np.int64)  # tokens in each new bin
    steps = 0
    while steps < most_steps:
        num_chosen = _choose(tokens, capacity, chosen, random)
        before = 0
        for b in chosen[:num_chosen]:
            is_chosen[b] = True
            before += tokens[b] * tokens[b]
        num_items = 0
        for i in range(len(lengths)):
            if is_chosen[bin_of[i]]:
                items[num_items] = i
                num_items += 1
        is_chosen[chosen[:num_chosen]] = False
        num_new, work = _fill(
            lengths[items[:num_items]], capacity, limit, _RANDOM_FIRST, random, label, held[:num_chosen]
        )
        steps += work + 3 * len(lengths) + 6 * len(tokens)
        after = 0
        for total in held[:num_new]:
            after += total * total
        if num_new < 0 or after < before:
            continue
        for k in range(num_items):
            bin_of[items[k]] = chosen[label[k]]
        tokens[chosen[:num_chosen]] = 0
        tokens[chosen[:num_new]] = held[:num_new]
        if num_new < num_chosen:
            break
    return steps


@kernel_part
def _choose(tokens: NDArray[np.int64], capacity: int, chosen: NDArray[np.int64], random: NDArray[np.uint64]) -> int:
    """Writes down a few random bins, half of them with room if there are as many; returns how many."""
    order = np.empty(len(tokens), np.int64)  # those with room, then the full ones
    num_open = 0
    at = len(tokens)
    for b in range(len(tokens)):
        if tokens[b] < capacity:
            order[num_open] = b
            num_open += 1
        else:
            at -= 1
            order[at] = b
    few = 2 + _below(_MOST_OF_A_KIND - 1, random)
    num_chosen = 0
    wanted = num_open if num_open <= _MOST_OF_A_KIND else max(2, few // 2)
    for first, end, number in ((0, num_open, wanted), (num_open, len(tokens), few)):
        for k in range(first, min(end, first + number)):
            other = k + _below(end - k, random)
            order[k], order[other] = order[other], order[k]
            chosen[num_chosen] = order[k]
            num_chosen += 1
    return num_chosen


@kernel
def _fill(
    lengths: NDArray[np.int64],
    capacity: int,
    limit: int,
    random_first: int,
    random: NDArray[np.uint64],
    label: NDArray[np.int64],
    held: NDArray[np.int64],
) -> tuple[int, int]:
    """Fills bins one after the other; returns how many, or -1 if there are too few, and the steps that it took.

    Args:
        lengths: int64 [n], descending.
        capacity: of a bin.
        limit: the most sequences in a bin.
        random_first: in how many of 100 bins a random sequence goes first, in the others the longest.
        random: uint64 [1], the state of the generator; changed.
        label: int64, receives each sequence's bin in its first n.
        held: int64 [bins], receives what each bin holds.
    """
    rest = np.arange(len(lengths))
    steps = 0
    for b in range(len(held)):
        first = _below(len(rest), random) if _below(100, random) < random_first else 0
        length = lengths[rest[first]]
        others = np.concatenate((rest[:first], rest[first + 1 :]))
        beside = fullest_subset(lengths[others], capacity - length, limit - 1)
        steps += 80 * len(others) + 8 * len(others) * ((capacity - length >> 6) + 1)
        label[rest[first]] = b
        held[b] = length
        for k in beside:
            label[others[k]] = b
            held[b] += lengths[others[k]]
            others[k] = -1
        rest = others[others >= 0]
        if not len(rest):
            return b + 1, steps
    return -1, steps


@kernel_part
def _below(most: int, random: NDArray[np.uint64]) -> Any:
    """Returns a number in [0, most), by a xorshift generator, the same on every machine."""
    bits = random[0]
    bits ^= bits << np.uint64(13)
    bits ^= bits >> np.uint64(7)
    bits ^= bits << np.uint64(17)
    random[0] = bits
    return np.int64((bits >> np.uint64(11)) % np.uint64(most))
