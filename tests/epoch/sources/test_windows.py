"""Locality windows: the list that the definition gives, whatever is asked of it, from a short range of ids each."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.epoch import EpochView, WindowedView, derive_key
from packhorse.epoch.sources import windows

WINDOWS = st.integers(1, 40)


def windowed(small, seed, epoch, num_windows):
    return WindowedView(small.plan, small.pool, seed=seed, epoch=epoch, num_windows=num_windows)


def test_bins_costs_and_places_follow_the_definition(epochs, bins_of):
    @given(epochs, WINDOWS, st.data())
    @settings(max_examples=60)
    def check(drawn, num_windows, data):
        small, seed, epoch = drawn
        view = windowed(small, seed, epoch, num_windows)
        expected = small.windowed(seed, epoch, num_windows)
        assert view.num_bins == len(expected) == small.plan.num_bins
        assert view.max_sequences_per_bin == small.plan.max_sequences_per_bin
        every = np.arange(view.num_bins)
        assert [(list(ids), list(lengths)) for _, ids, lengths in bins_of(view.bins(every))] == expected
        assert view.costs(every, 7).tolist() == [sum(7 * n + n * n for n in lengths) for _, lengths in expected]
        wanted = data.draw(st.lists(st.integers(0, view.num_bins - 1), max_size=10))
        assert bins_of(view.bins(wanted)) == [(p, *map(tuple, expected[p])) for p in wanted]
        places = {i: (p, j) for p, (ids, _) in enumerate(expected) for j, i in enumerate(ids)}
        unknown = sorted({-1, 2**40} - set(places))
        found = view.locate([*small.pool.tolist(), *unknown])
        rows = zip(found.positions.tolist(), found.index_in_bin.tolist(), strict=True)
        assert list(rows) == [places.get(i, (-1, -1)) for i in found.ids.tolist()]

    check()


def test_every_sequence_once(epochs):
    @given(epochs, WINDOWS)
    @settings(max_examples=60)
    def check(drawn, num_windows):
        small, seed, epoch = drawn
        view = windowed(small, seed, epoch, num_windows)
        assert sorted(view.bins(np.arange(view.num_bins)).ids.tolist()) == sorted(small.pool.tolist())

    check()


def test_one_window_is_the_plain_epoch_bit_for_bit(epochs):
    @given(epochs)
    @settings(max_examples=60)
    def check(drawn):
        small, seed, epoch = drawn
        one, plain = windowed(small, seed, epoch, 1), small.view(seed, epoch)
        every = np.arange(plain.num_bins)
        for name in ("ids", "lengths", "bin_ends", "positions"):
            ours, theirs = getattr(one.bins(every), name), getattr(plain.bins(every), name)
            assert (ours.dtype, ours.tolist()) == (theirs.dtype, theirs.tolist())

    check()


@pytest.fixture(scope="module")
def large(prepared):
    """20,000 sequences whose ids are their rows, lengths in no order."""
    lengths = np.random.default_rng(3).integers(20, 120, 20_000)
    counts = {n: int((lengths == n).sum()) for n in range(20, 120)}
    small = prepared(counts, 200, dtype=np.uint32)
    small.pool[:] = np.argsort(lengths, kind="stable")
    return small


def test_a_window_draws_from_a_short_range_of_ids(large):
    num_windows, plan = 20, large.plan
    view = windowed(large, 1, 0, num_windows)
    bins = view.bins(np.arange(view.num_bins))
    window_of = np.searchsorted(view.window_starts, np.arange(view.num_bins), side="right") - 1
    of_sequences = np.repeat(window_of, bins.sizes())
    length_of = dict(zip(large.pool.tolist(), np.repeat(list(large.counts), list(large.counts.values())), strict=True))
    rank_of = {i: r for n, ids in _by_length(large).items() for r, i in enumerate(ids)}
    slack = {int(n): int(plan.repeat_copies[plan.repeat_length == k].sum()) for k, n in enumerate(plan.lengths)}
    spans = []
    for ordinal, window in enumerate(view._window_at.tolist()):
        ids = bins.ids[of_sequences == ordinal].tolist()
        spans.append(max(ids) - min(ids))
        assert len(set(ids)) == len(ids)
        for i in ids:  # by the times: no draw is further from its share than its length's templates have slots
            n = length_of[i]
            begin, end = (Fraction(w, num_windows) * large.counts[n] for w in (window, window + 1))
            assert begin - slack[n] <= rank_of[i] < end + slack[n]
    assert np.median(spans) < 20_000 / num_windows * 4
    plain = large.view(1, 0).bins(np.arange(view.num_bins // num_windows)).ids
    assert int(plain.max()) - int(plain.min()) > 19_000


def _by_length(small):
    ends = np.cumsum([0, *small.counts.values()]).tolist()
    return {n: small.pool[a:b].tolist() for n, a, b in zip(small.counts, ends, ends[1:], strict=False)}


def test_windows_and_pairings_change_from_epoch_to_epoch(large):
    def pairs(view):
        bins = view.bins(np.arange(view.num_bins))
        return {tuple(sorted(ids.tolist())) for ids in np.split(bins.ids, bins.bin_ends[:-1]) if len(ids) > 1}

    assert len({tuple(windowed(large, 1, epoch, 20)._window_at.tolist()) for epoch in range(3)}) == 3
    first, second, third = (pairs(windowed(large, 1, epoch, 4)) for epoch in range(3))
    for one, other in ((first, second), (second, third), (first, third)):
        assert len(one & other) < 0.02 * len(one)


def test_windows_used_last_are_kept_and_no_more(large, monkeypatch):
    monkeypatch.setattr(windows, "_MOST_BYTES", 1)
    view, free = windowed(large, 9, 2, 50), windowed(large, 9, 2, 50)
    positions = np.random.default_rng(0).integers(0, view.num_bins, 200)
    parts = [view.bins([p]).ids.tolist() for p in positions]
    assert len(view._views) == 2
    monkeypatch.undo()
    assert [i for ids in parts for i in ids] == free.bins(positions).ids.tolist()


@pytest.mark.parametrize("num_windows", [2, 300])
def test_an_epoch_knows_what_its_windows_take(large, num_windows):
    view = windowed(large, 9, 2, num_windows)
    view.bins(np.arange(view.num_bins))
    assert len(view._views) == num_windows
    names = ("first_bin", "repeat_first_draw", "counts", "pool_starts", "lookup")
    own = [
        each.num_bytes + sum(getattr(each._plan, name).nbytes for name in names)
        for each in map(view._view, range(num_windows))
    ]
    assert sum(own) <= view.num_bytes <= num_windows * (max(own) + (16 << 10) + 1000)


def test_more_windows_than_bins(prepared):
    small = prepared({5: 3, 2: 4}, 9)
    view = windowed(small, 0, 0, 1000)
    assert sorted(view.bins(np.arange(view.num_bins)).ids.tolist()) == sorted(small.pool.tolist())


def test_pieces_keep_their_first_tokens(prepared):
    small = prepared({5: 30, 2: 40}, 9)
    first_tokens = np.arange(70, dtype=np.int64) * 3
    entries = WindowedView(small.plan, np.arange(70), seed=1, epoch=2, num_windows=6).bins(range(small.plan.num_bins))
    view = WindowedView(small.plan, small.pool, seed=1, epoch=2, num_windows=6, first_tokens=first_tokens)
    bins = view.bins(range(small.plan.num_bins))
    assert bins.first_tokens.tolist() == first_tokens[entries.ids].tolist()
    found = view.locate(bins.ids)
    assert found.first_tokens.tolist() == bins.first_tokens.tolist()
    assert found.positions.tolist() == np.repeat(np.arange(len(bins)), bins.sizes()).tolist()


def test_empty_and_refused(prepared):
    empty = windowed(prepared({}, 9), 0, 0, 4)
    assert empty.num_bins == len(empty.bins([])) == 0
    small = prepared({5: 7}, 9)
    for number in (0, 2**20 + 1, True):
        with pytest.raises(ValueError, match=r"num_windows must be an integer in \[1, 1048576\]"):
            windowed(small, 0, 0, number)
    with pytest.raises(ValueError, match="the pool has 6 ids, but the plan uses 7"):
        WindowedView(small.plan, small.pool[:6], seed=0, epoch=0, num_windows=2)
    with pytest.raises(ValueError, match=r"positions must be in \[0, 7\), got 7"):
        windowed(small, 0, 0, 2).bins([7])


def test_times_are_keyed_by_seed_and_epoch(large):
    shifts = {tuple(windowed(large, seed, epoch, 16)._shifts.tolist()) for seed in range(2) for epoch in range(2)}
    assert len(shifts) == 4
    assert derive_key(1, 0, "window times") != derive_key(1, 0, "window order")
    assert isinstance(windowed(large, 1, 0, 4)._view(2), EpochView)
