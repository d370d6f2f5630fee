"""Online packing: nothing lost, nothing overfilled, no one forgotten, bins as full as brute force finds."""

from inspect import signature
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.client import Client
from packhorse.packing import pack_histogram
from packhorse.packing.on_demand import online
from packhorse.packing.on_demand.next_bin import fullest_bin
from packhorse.packing.on_demand.online import DEFAULT_LOOKAHEAD_SEQUENCES, PATIENCE_LOOKAHEADS, OnlinePacker
from packhorse.packing.optimal.subset_sum import fullest_subset


def run(packer, lengths):
    """Bins of each add, and of the flush."""
    steps = [packer.add(number, length) for number, length in enumerate(lengths)]
    return steps, packer.flush()


def efficiency(lengths, capacity, window=1000):
    steps, rest = run(OnlinePacker(capacity, lookahead_sequences=window), lengths)
    return sum(lengths) / capacity / (sum(map(len, steps)) + len(rest))


@st.composite
def streams(draw):
    capacity = draw(st.integers(1, 300))
    options = {
        "lookahead_sequences": draw(st.integers(1, 12)),
        "max_sequences_per_bin": draw(st.none() | st.integers(1, 6)),
        "align": draw(st.integers(1, max(1, capacity // 3))),
        "extra_tokens": draw(st.integers(-1, capacity // 4)),
    }
    longest = capacity // options["align"] * options["align"] - options["extra_tokens"]
    if longest < 1:
        options |= {"align": 1, "extra_tokens": 0}
        longest = capacity
    return capacity, options, draw(st.lists(st.integers(1, longest), max_size=80))


@given(streams())
@settings(max_examples=100)
def test_every_sequence_leaves_once_in_a_bin_that_holds_it(case):
    capacity, options, lengths = case
    packer = OnlinePacker(capacity, **options)
    bins = []
    for number, length in enumerate(lengths):
        held = len(packer)
        left = packer.add(number, length)
        assert len(left) == (held == options["lookahead_sequences"])
        bins += left
        assert len(packer) == number + 1 - sum(len(b.ids) for b in bins) <= options["lookahead_sequences"]
    bins += packer.flush()
    assert len(packer) == 0
    assert packer.flush() == []
    ids = [i for b in bins for i in b.ids]
    assert sorted(ids) == list(range(len(lengths)))
    limit = options["max_sequences_per_bin"] or capacity
    for b in bins:
        assert b.lengths == [lengths[i] for i in b.ids]
        assert 1 <= len(b.ids) <= limit
        sizes = [-(-max(n + options["extra_tokens"], 1) // options["align"]) * options["align"] for n in b.lengths]
        assert sum(sizes) <= capacity
        assert sizes == sorted(sizes, reverse=True)
    again = OnlinePacker(capacity, **options)
    steps, rest = run(again, lengths)
    assert [b for step in steps for b in step] + rest == bins


@given(st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=4), max_size=40), st.integers(1, 9))
@settings(max_examples=75)
def test_a_group_is_packed_as_one_sequence_of_its_room(groups, window):
    packer = OnlinePacker(90, lookahead_sequences=window, align=2, extra_tokens=1)
    numbers = iter(range(10**6))
    ids = [[next(numbers) for _ in lengths] for lengths in groups]
    bins = []
    for members, lengths in zip(ids, groups, strict=True):
        bins += packer.add_group(members, lengths)
        assert len(packer) <= window
    bins += packer.flush()
    assert len(packer) == 0
    items = []
    for b in bins:
        assert sum(packer.room_of(length) for length in b.lengths) <= 90
        assert len(b.ids) == len(b.lengths)
        items += b.items
    came = sorted((list(item.ids), list(item.lengths)) for item in items)
    assert came == sorted(zip(ids, groups, strict=True))


def test_a_group_that_cannot_be_kept_whole_is_refused():
    with pytest.raises(ValueError, match="takes 101 tokens together, over max_seq_len 100"):
        OnlinePacker(100).add_group([1, 2], [50, 51])
    with pytest.raises(ValueError, match="max_sequences_per_bin does not go with groups"):
        OnlinePacker(100, max_sequences_per_bin=5).add_group([1, 2], [50, 5])


@given(st.lists(st.integers(1, 90), max_size=9), st.integers(0, 200))
@settings(max_examples=150)
def test_a_subset_is_the_fullest_there_is(sizes, room):
    sizes = sorted(sizes, reverse=True)
    places = fullest_subset(np.array(sizes, dtype=np.int64), room, len(sizes)).tolist()
    assert len(set(places)) == len(places)
    sums = [sum(c) for k in range(len(sizes) + 1) for c in combinations(sizes, k)]
    assert sum(sizes[p] for p in places) == max(s for s in sums if s <= room)


@given(st.lists(st.integers(1, 64), min_size=1, max_size=9), st.data())
@settings(max_examples=150)
def test_a_bin_is_the_fullest_there_is(sizes, data):
    sizes = sorted(sizes, reverse=True)
    forced = data.draw(st.integers(-1, len(sizes) - 1))
    capacity = data.draw(st.integers(sizes[0], 200))
    places = fullest_bin(np.array(sizes, dtype=np.int64), capacity, len(sizes), forced).tolist()
    assert places == sorted(set(places))
    assert forced < 0 or forced in places
    groups = [c for k in range(1, len(sizes) + 1) for c in combinations(range(len(sizes)), k)]
    fills = [sum(sizes[p] for p in c) for c in groups if forced < 0 or forced in c]
    assert sum(sizes[p] for p in places) == max(f for f in fills if f <= capacity)


@given(st.lists(st.integers(1, 64), max_size=30), st.integers(0, 300), st.integers(0, 5))
@settings(max_examples=100)
def test_a_limit_is_kept(sizes, room, limit):
    sizes = sorted(sizes, reverse=True)
    places = fullest_subset(np.array(sizes, dtype=np.int64), room, limit).tolist()
    assert len(set(places)) == len(places) <= limit
    assert sum(sizes[p] for p in places) <= room


def test_long_ones_before_short_ones():
    sizes = np.array([60, 50, 30, 20, 10, 10], dtype=np.int64)
    assert fullest_subset(sizes, 80, 6).tolist() == [2, 1]  # 50 + 30, not 60 + 20 or 60 + 10 + 10
    assert fullest_bin(sizes, 100, 6, -1).tolist() == [0, 2, 4]  # the longest, then 30 + 10, not 20 + 10 + 10


@pytest.mark.parametrize("window", [1, 3, 40])
def test_no_sequence_is_held_for_ever(window):
    """A sequence that never fits well (51 of 100, among pairs that fill a bin exactly) leaves within its bound."""
    packer = OnlinePacker(100, lookahead_sequences=window)
    waited, num_bins, arrived = [], 0, {}
    for number in range(20 * window + 200):
        arrived[number] = num_bins
        for b in packer.add(number, 51 if number % 7 == 0 else (70 if number % 2 else 30)):
            num_bins += 1
            waited += [num_bins - arrived[i] for i in b.ids]
    assert max(waited) <= (PATIENCE_LOOKAHEADS + 1) * window + 1
    if window > 1:
        assert max(waited) > window / 2  # they do wait


@given(st.lists(st.integers(1, 50), min_size=60, max_size=200), st.integers(1, 6))
@settings(max_examples=60)
def test_the_bound_holds_for_any_stream(lengths, window):
    packer = OnlinePacker(50, lookahead_sequences=window)
    arrived, num_bins = {}, 0
    for number, length in enumerate(lengths):
        arrived[number] = num_bins
        for b in packer.add(number, length):
            num_bins += 1
            assert all(num_bins - arrived[i] <= (PATIENCE_LOOKAHEADS + 1) * window + 1 for i in b.ids)


def test_emission_is_steady():
    """Once the window is full, what leaves keeps step with what arrives, in any stretch."""
    random = np.random.default_rng(1)
    lengths = random.integers(1, 513, 6000)
    steps, _ = run(OnlinePacker(512, lookahead_sequences=200), lengths.tolist())
    left = np.cumsum([sum(sum(b.lengths) for b in step) for step in steps])
    assert left[199] == 0
    held = np.cumsum(lengths) - left
    assert held[200:].max() <= 200 * 512
    gaps = np.diff(np.flatnonzero([len(step) for step in steps]))
    assert gaps.max() < 200  # no more arrive between two bins than a bin has sequences


DISTRIBUTIONS = {
    "lognormal 600 @2048": (2048, lambda r, n: r.lognormal(np.log(600) - 0.5, 1.0, n)),
    "lognormal 1200 @2048": (2048, lambda r, n: r.lognormal(np.log(1200) - 0.125, 0.5, n)),
    "uniform @512": (512, lambda r, n: r.integers(16, 513, n)),
    "gamma @512": (512, lambda r, n: r.gamma(5, 20, n)),
    "normal @8192": (8192, lambda r, n: r.normal(4096, 512, n)),
    "bimodal @2048": (2048, lambda r, n: np.where(r.random(n) < 0.5, r.normal(300, 80, n), r.normal(1500, 200, n))),
    "exponential @2048": (2048, lambda r, n: r.exponential(400, n)),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_at_most_a_point_below_offline(name):
    capacity, draw = DISTRIBUTIONS[name]
    lengths = np.clip(draw(np.random.default_rng(5), 5000).astype(np.int64), 1, capacity)
    counts = dict(zip(*(part.tolist() for part in np.unique(lengths, return_counts=True)), strict=True))
    offline = pack_histogram(counts, capacity, algorithm="best-fit").efficiency
    assert efficiency(lengths.tolist(), capacity) >= offline - 0.01


def test_a_longer_window_packs_better():
    lengths = np.random.default_rng(3).integers(16, 513, 4000).tolist()
    short, middle, long = (efficiency(lengths, 512, window) for window in (1, 30, 1000))
    assert short < middle - 0.03 < long - 0.05


def test_huge_capacities_are_searched_in_coarser_units():
    capacity = 2**31 - 1
    packer = OnlinePacker(capacity, lookahead_sequences=4)
    lengths = [capacity, 2**30, 2**30 - 1, 1, capacity // 3, capacity // 3, capacity // 3]
    steps, rest = run(packer, lengths)
    bins = [b for step in steps for b in step] + rest
    assert sorted(i for b in bins for i in b.ids) == list(range(7))
    assert all(sum(b.lengths) <= capacity for b in bins)
    odd = OnlinePacker(online.MAX_UNITS + 1, lookahead_sequences=1)
    assert [b.lengths for b in (*odd.add(0, online.MAX_UNITS + 1), *odd.add(1, 5), *odd.flush())] == [
        [online.MAX_UNITS + 1],
        [5],
    ]


def test_ids_may_repeat():
    packer = OnlinePacker(10, lookahead_sequences=2)
    bins = [b for _ in range(5) for b in packer.add(7, 4)] + packer.flush()
    assert sum(len(b.ids) for b in bins) == 5


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_seq_len": 0}, "max_seq_len"),
        ({"max_seq_len": 2**31}, "max_seq_len"),
        ({"max_seq_len": 10.0}, "max_seq_len"),
        ({"lookahead_sequences": 0}, "lookahead_sequences"),
        ({"max_sequences_per_bin": 0}, "max_sequences_per_bin"),
        ({"align": 0}, "align"),
        ({"align": 101}, "align"),
        ({"extra_tokens": -2}, "extra_tokens"),
        ({"extra_tokens": 100}, "extra_tokens"),
    ],
)
def test_options_out_of_range(options, named):
    with pytest.raises(ValueError, match=named):
        OnlinePacker(**({"max_seq_len": 100} | options))


@pytest.mark.parametrize("length", [0, -1, 101, 1.5, float("nan"), "5", None, True])
def test_lengths_that_do_not_fit(length):
    packer = OnlinePacker(100, lookahead_sequences=1)
    with pytest.raises(ValueError, match="length"):
        packer.add(1, length)
    assert len(packer) == 0
    with pytest.raises(ValueError, match="align 8"):
        OnlinePacker(100, align=8, extra_tokens=2).add(1, 95)


def test_a_stream_of_packs_has_the_packers_default():
    default = signature(Client.pack_stream).parameters["lookahead_sequences"].default
    assert default == DEFAULT_LOOKAHEAD_SEQUENCES
