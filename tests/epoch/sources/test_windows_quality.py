"""What `shuffle_quality` measures, against corpora whose answers are known; and that windows need many of a length."""

import itertools

import numpy as np
import pytest

from packhorse.epoch import EpochView, PlanIndex, WindowedView, shuffle_quality
from packhorse.epoch.figures.shuffle_quality import PAGE_BYTES
from packhorse.packing import pack_histogram


@pytest.fixture(scope="module")
def corpora():
    """Function: (plan, pool, lengths by id) of 30,000 sequences whose lengths are multiples of `step`."""

    def make(step):
        lengths = np.clip(np.random.default_rng(5).lognormal(4.5, 0.8, 30_000).astype(int), 1, 512)
        lengths = -(-lengths // step) * step
        counts = dict(zip(*(each.tolist() for each in np.unique(lengths, return_counts=True)), strict=True))
        plan = PlanIndex.build(pack_histogram(counts, 512, algorithm="best-fit").templates, counts, 512)
        return plan, np.argsort(lengths, kind="stable").astype(np.uint32), lengths

    return make


def test_the_global_shuffle_is_fair(corpora):
    quality = shuffle_quality(*corpora(1)[:2], 1)
    assert 0.7 < quality.chi_square < 1.4
    assert quality.neighbours == pytest.approx(1, abs=0.1)
    assert quality.return_epochs == pytest.approx(np.sqrt(0.02), abs=0.01)
    assert quality.read == quality.read_globally == pytest.approx(1, abs=0.001)


@pytest.mark.parametrize("num_windows", [2, 8])
def test_reads_counted_out(corpora, num_windows):
    plan, pool, lengths = corpora(16)
    ends = 4 * np.cumsum(lengths)
    pages = [
        range(int(end - 4 * n) // PAGE_BYTES, int(end - 1) // PAGE_BYTES + 1)
        for end, n in zip(ends, lengths, strict=True)
    ]
    windowed = WindowedView(plan, pool, seed=3, epoch=0, num_windows=num_windows)
    plain = EpochView(plan, pool, seed=3, epoch=0)
    starts = windowed.window_starts.tolist()
    assert (starts[0], starts[-1], len(starts)) == (0, plan.num_bins, num_windows + 1)
    even = [-(-w * plan.num_bins // num_windows) for w in range(num_windows + 1)]
    quality = shuffle_quality(plan, pool, num_windows, seed=3)
    for view, bounds, read in ((windowed, starts, quality.read), (plain, even, quality.read_globally)):
        touched = 0
        for begin, end in itertools.pairwise(bounds):
            touched += len({page for i in view.bins(np.arange(begin, end)).ids.tolist() for page in pages[i]})
        assert read == pytest.approx(touched * PAGE_BYTES / ends[-1])


def test_windows_read_little_where_they_take_many_of_each_length(corpora):
    few, many = (shuffle_quality(*corpora(step)[:2], 8) for step in (1, 64))
    assert many.read < 1.2 < few.read < few.read_globally
    assert many.neighbours > 6


def test_pieces_of_one_sequence_are_neighbours():
    plan = PlanIndex.build({(4, 4): 300}, {4: 600}, 8)
    ids, first_tokens = np.repeat(np.arange(300), 2), np.tile([0, 4], 300)
    pieces = shuffle_quality(plan, ids, 1, first_tokens=first_tokens)
    assert pieces == shuffle_quality(plan, np.arange(600), 1)
