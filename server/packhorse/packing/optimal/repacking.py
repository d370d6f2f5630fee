"""Repacking: a local search that repacks a few bins at a time until the plan has as few bins as wanted.

It saves the last bins of small plans, in which hardly a token may stay free. Owns the search and its compiled loops.
Leaves filling one bin to `subset_sum`, the bound at which the search ends to `_search`, and when it runs, and for how
long, to `column_generation`.

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
"""Most sequences for which it is used. With more, one bin is a negligible share, and the search seldom saves it."""
_MOST_OF_A_KIND = 6
"""Most bins of each kind, full or with room, that are repacked together. With 4 or 8 it missed more of the published
optima."""
_RANDOM_FIRST = 90
"""Percentage of bins into which a random sequence goes first; into others the longest. With 50 it took much longer."""
_MOST_TO_FILL = 2**28
"""Sequences × bins × words of a bitset up to which the search starts by filling all bins again: a second at most."""
_STEPS_PER_CALL = 50_000_000
"""Steps between two charges of the budget: less than 0.1 s."""
_STEPS_PER_SEQUENCE, _STEPS_PER_BIN = 3, 6
"""Steps of choosing bins and collecting their sequences."""
_STEPS_PER_ITEM, _STEPS_PER_WORD = 80, 8
"""Steps of filling a bin: for each sequence to choose from, and for each word of its bitset."""
_SEED = 0x9E3779B97F4A7C15
"""First state of the random generator, any number but 0."""


class Repacking:
    """Sequences in bins, and a search for fewer bins.

    Each step empties a few bins that have room and a few full ones. It fills them again one after another: a random
    sequence, and with it those that leave the least room. The new bins are kept if there are no more of them, and if
    the sum of the squares of their tokens is no smaller. So free room gathers in few bins, until one of them is empty.

    Args:
        templates: template → multiplicity of the plan to start from.
        capacity: a bin's capacity in tokens.
        limit: the most sequences in a bin.

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
        """Fills bins one after another, the longest sequence left first; takes them if they are not more."""
        bin_of, tokens = np.empty_like(self._bin_of), np.zeros_like(self._tokens)
        random_first = 0  # percent
        num_bins, _ = _fill(self._lengths, self._capacity, self._limit, random_first, self._random, bin_of, tokens)
        if num_bins > 0:  # -1 if the sequences need more bins than before
            self._bin_of, self._tokens, self.num_bins = bin_of, tokens[:num_bins].copy(), num_bins

    def search(self, target: int, budget: Budget) -> None:
        """Searches until there are `target` bins.

        Raises:
            OutOfWorkError: the budget is spent; the bins are a valid plan.
            OutOfTimeError: the deadline passed; the bins are a valid plan.
        """
        while self.num_bins > target:
            most_steps = min(_STEPS_PER_CALL, budget.left)
            steps = int(
                _repack(
                    self._lengths, self._bin_of, self._tokens, self._capacity, self._limit, self._random, most_steps
                )
            )
            used = np.flatnonzero(self._tokens)
            if len(used) < self.num_bins:  # the others are numbered again without the empty bins
                self._bin_of = np.searchsorted(used, self._bin_of)
                self._tokens = self._tokens[used]
                self.num_bins = len(used)
            budget.spend(steps)

    def templates(self) -> Counter[Template]:
        """Returns template → multiplicity of the bins."""
        bins: defaultdict[int, list[int]] = defaultdict(list)
        for number, length in zip(self._bin_of.tolist(), self._lengths.tolist(), strict=True):
            bins[number].append(length)
        return Counter(map(tuple, bins.values()))


def compile_kernels() -> None:
    """Compiles the loops of this module, or loads them from the cache: about 5 s of processor time the first time."""
    lengths, bin_of, tokens = (np.array(numbers, dtype=np.int64) for numbers in ([5, 4, 3], [0, 0, 1], [9, 3]))
    _repack(lengths, bin_of, tokens, 12, 3, np.array([_SEED], dtype=np.uint64), 1)


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
    """Repacks bins until one of them is empty, or the steps are spent; returns the number of steps.

    Args:
        lengths: int64 [S], descending.
        bin_of: int64 [S], each sequence's bin; changed.
        tokens: int64 [B], tokens in each bin; changed, 0 for an empty bin.
        capacity: a bin's capacity in tokens.
        limit: the most sequences in a bin.
        random: uint64 [1], the state of the generator; changed.
        most_steps: most steps, of about a nanosecond each.
    """
    is_chosen = np.zeros(len(tokens), np.bool_)
    chosen = np.empty(2 * _MOST_OF_A_KIND, np.int64)
    items = np.empty(len(lengths), np.int64)  # indices of the sequences in the chosen bins, ascending
    new_bin = np.empty(len(lengths), np.int64)  # for each of `items`, the index of its new bin in `chosen`
    new_tokens = np.empty(2 * _MOST_OF_A_KIND, np.int64)  # tokens in each new bin
    steps = 0
    while steps < most_steps:
        num_chosen = _choose(tokens, capacity, chosen, random)
        old_squares = 0
        for b in chosen[:num_chosen]:
            is_chosen[b] = True
            old_squares += tokens[b] * tokens[b]
        num_items = 0
        for i in range(len(lengths)):
            if is_chosen[bin_of[i]]:
                items[num_items] = i
                num_items += 1
        is_chosen[chosen[:num_chosen]] = False
        num_new, fill_steps = _fill(
            lengths[items[:num_items]], capacity, limit, _RANDOM_FIRST, random, new_bin, new_tokens[:num_chosen]
        )
        steps += fill_steps + _STEPS_PER_SEQUENCE * len(lengths) + _STEPS_PER_BIN * len(tokens)
        if num_new < 0:  # they need more bins than before
            continue
        new_squares = 0
        for total in new_tokens[:num_new]:
            new_squares += total * total
        if new_squares < old_squares:
            continue
        for k in range(num_items):
            bin_of[items[k]] = chosen[new_bin[k]]
        tokens[chosen[:num_chosen]] = 0
        tokens[chosen[:num_new]] = new_tokens[:num_new]
        if num_new < num_chosen:
            break
    return steps


@kernel_part
def _choose(tokens: NDArray[np.int64], capacity: int, chosen: NDArray[np.int64], random: NDArray[np.uint64]) -> int:
    """Chooses random bins, a few with room and a few full ones; returns their number.

    Args:
        tokens: int64 [B], tokens in each bin.
        capacity: a bin's capacity in tokens.
        chosen: int64 [2 · _MOST_OF_A_KIND], receives the bins.
        random: uint64 [1], the state of the generator; changed.
    """
    order = np.empty(len(tokens), np.int64)  # bins with room, then full ones
    num_open = 0
    first_full = len(tokens)
    for b in range(len(tokens)):
        if tokens[b] < capacity:
            order[num_open] = b
            num_open += 1
        else:
            first_full -= 1
            order[first_full] = b
    most_full = 2 + _random_below(_MOST_OF_A_KIND - 1, random)  # from 2 to _MOST_OF_A_KIND
    # All bins with room if they are few, because the room that is to be gathered is in them; else about half as many.
    most_open = num_open if num_open <= _MOST_OF_A_KIND else max(2, most_full // 2)
    num_chosen = 0
    for first, end, most in ((0, num_open, most_open), (num_open, len(tokens), most_full)):
        for k in range(first, min(end, first + most)):  # the first steps of a shuffle of this kind
            other = k + _random_below(end - k, random)
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
    bin_out: NDArray[np.int64],
    tokens_out: NDArray[np.int64],
) -> tuple[int, int]:
    """Fills bins with n sequences, one bin after another.

    Args:
        lengths: int64 [n], descending.
        capacity: a bin's capacity in tokens.
        limit: the most sequences in a bin.
        random_first: percentage of bins into which a random sequence goes first; into others the longest.
        random: uint64 [1], the state of the generator; changed.
        bin_out: int64 [n or more], receives each sequence's bin.
        tokens_out: int64 [bins], receives the tokens in each bin.

    Returns:
        The number of bins that were needed, -1 if it exceeds len(tokens_out), and the number of steps.
    """
    rest = np.arange(len(lengths))
    steps = 0
    for b in range(len(tokens_out)):
        first = _random_below(len(rest), random) if _random_below(100, random) < random_first else 0
        length = lengths[rest[first]]
        others = np.concatenate((rest[:first], rest[first + 1 :]))
        beside = fullest_subset(lengths[others], capacity - length, limit - 1)
        num_words = (capacity - length >> 6) + 1
        steps += len(others) * (_STEPS_PER_ITEM + _STEPS_PER_WORD * num_words)
        bin_out[rest[first]] = b
        tokens_out[b] = length
        for k in beside:
            bin_out[others[k]] = b
            tokens_out[b] += lengths[others[k]]
            others[k] = -1  # marks it as packed
        rest = others[others >= 0]
        if not len(rest):
            return b + 1, steps
    return -1, steps


@kernel_part
def _random_below(end: int, random: NDArray[np.uint64]) -> Any:
    """Returns a random number in [0, end) by a xorshift generator, the same on every machine."""
    bits = random[0]
    bits ^= bits << np.uint64(13)
    bits ^= bits >> np.uint64(7)
    bits ^= bits << np.uint64(17)
    random[0] = bits
    return np.int64((bits >> np.uint64(11)) % np.uint64(end))
