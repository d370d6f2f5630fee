"""Training without packing: the cost of the usual ways to make rows of the same sequences.

Owns the ways and their arithmetic over histograms. Leaves plans to `packhorse.packing`.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from packhorse.analysis.counts import fit
from packhorse.dataset import OverLength
from packhorse.topology import RoomRule

ROWS_PER_BATCH = 32
"""Rows in a batch that is padded to its longest sequence."""

_DRAWN_SEQUENCES = 1 << 18
"""The most sequences that are put into random order; more are sampled."""

_SEED = 0
"""Seed of the random order, so that the same counts always give the same figures."""


@dataclass(frozen=True, kw_only=True)
class Unpacked:
    """One way to make rows without packing."""

    way: str
    """"padded", "sorted-batches", "concatenated" or "random-order"."""
    sequences: int
    """Sequences in an epoch; each piece of a split sequence counts."""
    rows: int
    """Rows in an epoch."""
    computed_tokens: int
    """Tokens that a GPU computes in an epoch, padding included."""
    efficiency: float
    """Tokens of sequences per computed token, in [0, 1]; `extra_tokens` and alignment count as in a plan."""
    sequences_cut: int
    """Sequences that are cut into parts which do not see each other."""


def ways_without_packing(
    counts: Mapping[int, int], rule: RoomRule, policy: OverLength, max_sequences_per_row: int | None = None
) -> list[Unpacked]:
    """Returns the figures of every way to make rows of the same sequences.

    Args:
        counts: length in tokens → number of sequences, including those that are too long.
        rule: how many tokens a sequence takes in a row.
        policy: what happens to sequences that are too long; concatenation takes them as they are.
        max_sequences_per_row: the most in a row that is filled in random order; None for no limit.

    Example:
        >>> [(way.way, way.rows) for way in ways_without_packing({5: 6, 3: 2}, RoomRule(10), "error")]
        [('padded', 8), ('sorted-batches', 8), ('random-order', 4), ('concatenated', 4)]
    """
    fitting = fit(counts, rule.longest, policy)
    rooms: Counter[int] = Counter()
    for length, count in fitting.items():
        rooms[int(rule.room(length))] += count
    laid_end_to_end = {length + rule.extra_tokens: count for length, count in counts.items()}
    return [
        padded(rooms, rule.max_seq_len),
        sorted_batches(rooms, ROWS_PER_BATCH),
        random_order(rooms, rule.max_seq_len, max_sequences_per_row),
        concatenated(laid_end_to_end, rule.max_seq_len),
    ]


def padded(rooms: Mapping[int, int], max_seq_len: int) -> Unpacked:
    """Measures rows of one sequence each, padded to max_seq_len.

    Example:
        >>> padded({4: 1, 6: 1}, 10).efficiency
        0.5
    """
    rows = sum(rooms.values())
    return _figures("padded", rooms, rows, rows * max_seq_len)


def sorted_batches(rooms: Mapping[int, int], rows_per_batch: int) -> Unpacked:
    """Measures rows of one sequence each, sorted by length, with every batch padded to its longest sequence.

    The whole epoch is sorted, so this is the best case of bucketing by length. The last batch may have fewer rows.
    Takes O(distinct lengths).

    Example:
        >>> sorted_batches({4: 3, 6: 1}, 2).computed_tokens  # (6, 4), (4, 4)
        20
    """
    rows = sum(rooms.values())
    first = computed = 0
    for room in sorted(rooms, reverse=True):
        end = first + rooms[room]
        # The batches that begin with one of the rows first to end - 1 are padded to this room.
        first_batch, end_batch = -(-first // rows_per_batch), -(-end // rows_per_batch)
        computed += room * (min(end_batch * rows_per_batch, rows) - min(first_batch * rows_per_batch, rows))
        first = end
    return _figures("sorted-batches", rooms, rows, computed)


def concatenated(lengths: Mapping[int, int], max_seq_len: int) -> Unpacked:
    """Measures rows made by joining all sequences in random order and cutting the result every max_seq_len tokens.

    A cut falls inside a sequence of L tokens with probability (L - 1) / max_seq_len, or 1 if L is longer than a row.
    The number of sequences cut is the sum of these probabilities, rounded.

    Example:
        >>> concatenated({5: 100}, 10).sequences_cut
        40
    """
    rows = -(-sum(length * count for length, count in lengths.items()) // max_seq_len)
    num_cut = sum(min(length - 1, max_seq_len) * count for length, count in lengths.items()) / max_seq_len
    return _figures("concatenated", lengths, rows, rows * max_seq_len, sequences_cut=round(num_cut))


def random_order(rooms: Mapping[int, int], max_seq_len: int, max_sequences_per_row: int | None = None) -> Unpacked:
    """Measures rows filled in random order, each until the next sequence does not fit (next-fit).

    Rows are counted for one random order, with a fixed seed. If there are more than 2^18 sequences, 2^18 are drawn at
    random and the count is scaled up.

    Example:
        >>> random_order({6: 4}, 10).rows
        4
    """
    num_sequences = sum(rooms.values())
    generator = np.random.default_rng(_SEED)
    values, counts = np.array(list(rooms)), np.array(list(rooms.values()))
    if num_sequences <= _DRAWN_SEQUENCES:
        drawn = generator.permutation(np.repeat(values, counts))
    else:
        drawn = generator.choice(values, _DRAWN_SEQUENCES, p=counts / num_sequences)
    tokens_before = [0, *np.cumsum(drawn).tolist()]  # before each sequence, and after the last
    first = rows = 0
    while first < len(drawn):
        end = bisect_right(tokens_before, tokens_before[first] + max_seq_len, lo=first) - 1
        first = end if max_sequences_per_row is None else min(end, first + max_sequences_per_row)
        rows += 1
    rows = -(-rows * num_sequences // len(drawn))
    return _figures("random-order", rooms, rows, rows * max_seq_len)


def _figures(way: str, rooms: Mapping[int, int], rows: int, computed: int, *, sequences_cut: int = 0) -> Unpacked:
    """Returns the figures of a way; `computed` counts the tokens that a GPU computes, padding included."""
    tokens = sum(room * count for room, count in rooms.items())
    return Unpacked(
        way=way,
        sequences=sum(rooms.values()),
        rows=rows,
        computed_tokens=computed,
        efficiency=tokens / computed,
        sequences_cut=sequences_cut,
    )
