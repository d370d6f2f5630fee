"""How many bin-mates meet again, beside what epochs do."""

from itertools import combinations

import numpy as np
import pytest

from packhorse.epoch import EpochView, bin_mates_again
from packhorse.epoch.plan_index import PlanIndex
from packhorse.packing import pack_histogram


def pairs_of(view):
    """Every pair of ids that share a bin of an epoch."""
    bins = view.bins(np.arange(view.num_bins))
    return {pair for ids in np.split(bins.ids, bins.bin_ends[:-1]) for pair in combinations(sorted(ids.tolist()), 2)}


@pytest.mark.parametrize(
    ("counts", "max_seq_len"),
    [
        ({4: 30}, 8),
        ({7: 3, 5: 4, 3: 6, 2: 9}, 16),
        ({length: 1 + length % 4 for length in range(3, 60)}, 128),
        ({50: 5, 1: 160}, 64),
    ],
)
def test_the_expectation_is_what_epochs_do_on_average(counts, max_seq_len):
    plan = pack_histogram(counts, max_seq_len)
    index = PlanIndex.build(plan.templates, counts, max_seq_len)
    pool = np.arange(sum(counts.values()))
    shares = []
    for seed in range(150):
        first, second = (pairs_of(EpochView(index, pool, seed=seed, epoch=epoch)) for epoch in (0, 1))
        shares.append(len(first & second) / len(first))
    expected = bin_mates_again(index)
    assert 0 < expected <= 1
    assert abs(np.mean(shares) - expected) < 5 * np.std(shares) / len(shares) ** 0.5 + 1e-9


def test_bins_of_one_sequence_have_no_mates():
    assert bin_mates_again(PlanIndex.build({(5,): 3}, {5: 3}, 8)) == 0.0


def test_many_distinct_lengths_meet_again_and_align_mends_it():
    """What the guides say, on lengths like theirs."""
    lengths = np.clip(np.random.default_rng(0).lognormal(6.5, 1.5, 20_000).astype(int), 1, 32_768)

    def share(align):
        rooms, numbers = np.unique(-(-lengths // align) * align, return_counts=True)
        counts = dict(zip(rooms.tolist(), numbers.tolist(), strict=True))
        plan = pack_histogram(counts, 32_768, algorithm="best-fit")
        return bin_mates_again(PlanIndex.build(plan.templates, counts, 32_768))

    assert share(1) > 2 * share(16)
