"""How well permutations shuffle: statistics that a fair shuffle passes and weak mixers, the controls, fail.

Owns quality; leaves exactness to test_permutation. Every statistic becomes a probability: how often a uniformly random
shuffle would lie at least as far out, on either side. Keys are fixed, so the outcome never changes; ALPHA was chosen
before they were: all statistics together would fail a truly random shuffle about once in 500 choices of keys. Keys are
small consecutive integers, the hardest ones: a key must not need hashing to be a good one.

The controls are bijections, too: `rotation` adds the key, `affine` multiplies as well. A statistic that lets one pass
either cannot see that weakness (rotation by every amount equally often lands everywhere) and says so by leaving it out.
"""

from collections import Counter
from itertools import combinations, permutations
from math import comb, factorial, gcd, sqrt

import numpy as np
import pytest
from scipy import stats

from packhorse.epoch import EpochView, Permutation, PlanIndex, derive_key

ALPHA = 1e-4


def real(size, key, values, tweak=0):
    return Permutation(size, key, tweak).forward(values)


def rotation(size, key, values, tweak=0):
    return (np.asarray(values) + key + tweak) % size


def affine(size, key, values, tweak=0):
    rng = np.random.default_rng([key, tweak])
    factor = 0
    while gcd(factor, size) != 1:
        factor = int(rng.integers(1, size)) if size > 1 else 1
    return (np.asarray(values) * factor + int(rng.integers(size))) % size


def both_sides(distribution, value):
    """The probability of a value at least as far out, on either side."""
    return 2 * min(distribution.cdf(value), distribution.sf(value))


def chi_square(observed, expected, degrees):
    """`both_sides` of Pearson's statistic; counts that are too even are as suspicious as uneven ones."""
    return both_sides(stats.chi2(degrees), float(((observed - expected) ** 2 / expected).sum()))


def landing(size):
    """Where each element lands over keys: every element everywhere, equally often.

    Over random permutations (size - 1) / size of the table's statistic is chi-square with (size - 1)² degrees.
    """

    def statistic(mixer):
        num_keys = 50 * size
        table = np.zeros((size, size))
        for key in range(num_keys):
            table[np.arange(size), mixer(size, key, np.arange(size))] += 1
        expected = num_keys / size
        value = float(((table - expected) ** 2 / expected).sum()) * (size - 1) / size
        return both_sides(stats.chi2((size - 1) ** 2), value)

    return statistic


def all_orders(size):
    """Over keys each of the size! orders comes equally often."""

    def statistic(mixer):
        num_keys = 100 * factorial(size) + 7
        orders = Counter(tuple(mixer(size, key, np.arange(size)).tolist()) for key in range(num_keys))
        observed = np.array([orders[order] for order in permutations(range(size))])
        return chi_square(observed, num_keys / len(observed), len(observed) - 1)

    return statistic


def neighbour_distance(size, num_classes, num_keys=20_000):
    """(σ(c + 1) - σ(c)) mod size is any of 1 … size - 1, equally often; one pair of neighbours for each key."""

    def statistic(mixer):
        distances = np.empty(num_keys, dtype=np.int64)
        for key in range(num_keys):
            first = key * 7919 % (size - 1)
            image = mixer(size, key, [first, first + 1])
            distances[key] = (image[1] - image[0]) % size
        classes = (distances - 1) * num_classes // (size - 1)
        edges = -(np.arange(num_classes + 1) * (1 - size) // num_classes)  # first distance of each class
        share = np.diff(edges) / (size - 1)
        return chi_square(np.bincount(classes, minlength=num_classes), num_keys * share, num_classes - 1)

    return statistic


def serial_correlation(lag):
    """σ(c) and σ(c + lag) are uncorrelated, for each of some keys; the least probable of them, corrected for choice."""

    def statistic(mixer, size=50_021, num_keys=10):
        least = 1.0
        for key in range(num_keys):
            image = mixer(size, key, np.arange(size))
            r = np.corrcoef(image[:-lag], image[lag:])[0, 1]
            least = min(least, both_sides(stats.norm, (r + 1 / size) * sqrt(size - lag)))
        return min(1.0, num_keys * least)

    return statistic


def serial_cells(mixer, size=50_021, cells=32):
    """(σ(c), σ(c + 1)), in non-overlapping pairs, fill a grid evenly: sees the lines on which affine pairs lie."""
    image = mixer(size, 3, np.arange(size - 1)).reshape(-1, 2) * cells // size
    table = np.bincount(image[:, 0] * cells + image[:, 1], minlength=cells**2)
    return chi_square(table, len(image) / cells**2, cells**2 - 1)


def lengths_together(mixer, size=16, num_keys=25_600):
    """Permutations of equal size and key but other tweaks (other lengths) are independent: all pairs come alike."""
    table = np.zeros((size, size))
    for key in range(num_keys):
        element = key % size
        table[mixer(size, key, [element], 511)[0], mixer(size, key, [element], 512)[0]] += 1
    return chi_square(table, num_keys / size**2, size**2 - 1)


STATISTICS = {
    "landing, 12": landing(12),
    "landing, 61": landing(61),
    "landing, 257": landing(257),
    "all orders of 3": all_orders(3),
    "all orders of 4": all_orders(4),
    "all orders of 5": all_orders(5),
    "distance of neighbours, 210": neighbour_distance(210, 209),
    "distance of neighbours, 4097": neighbour_distance(4097, 128),
    "distance of neighbours, 2^33 + 1": neighbour_distance(2**33 + 1, 128),
    "serial correlation, lag 1": serial_correlation(1),
    "serial correlation, lag 2": serial_correlation(2),
    "serial correlation, lag 256": serial_correlation(256),
    "serial cells": serial_cells,
    "lengths together": lengths_together,
}
AFFINE_PASSES = {
    "landing, 12",  # each element alone lands anywhere
    "landing, 61",
    "landing, 257",
    "all orders of 3",  # an affine map gives all six
    "distance of neighbours, 4097",  # the factor is random and nearly every number is coprime to the size
    "distance of neighbours, 2^33 + 1",
    "lengths together",  # both maps have keys of their own here
}


@pytest.mark.parametrize("name", STATISTICS)
def test_permutation_shuffles_fairly(name):
    assert STATISTICS[name](real) > ALPHA


@pytest.mark.parametrize("name", STATISTICS)
def test_rotation_fails(name):
    assert STATISTICS[name](rotation) < ALPHA**2


@pytest.mark.parametrize("name", sorted(STATISTICS.keys() - AFFINE_PASSES))
def test_affine_map_fails(name):
    assert STATISTICS[name](affine) < ALPHA**2


NUM_BINS, BIN_SIZE, NUM_EPOCHS = 1500, 4, 30


def overlap_probability(epochs):
    """Bin-mates of one epoch that are bin-mates again in the next: as many as chance gives, near Poisson.

    Of all pairs of sequences a share of (BIN_SIZE - 1) / (sequences - 1) shares a bin.
    """
    shared, earlier = 0, None
    for bins in epochs:
        mates = {pair for members in np.sort(bins, axis=1).tolist() for pair in combinations(members, 2)}
        shared += len(mates & earlier) if earlier is not None else 0
        earlier = mates
    pairs = (len(epochs) - 1) * NUM_BINS * comb(BIN_SIZE, 2)
    return both_sides(stats.poisson(pairs * (BIN_SIZE - 1) / (NUM_BINS * BIN_SIZE - 1)), shared)


def real_epochs(seed_and_epoch):
    """[NUM_BINS, BIN_SIZE] of ids for each (seed, epoch)."""
    total = NUM_BINS * BIN_SIZE
    plan = PlanIndex.build({(128,) * BIN_SIZE: NUM_BINS}, {128: total}, 512)
    views = [EpochView(plan, np.arange(total), seed=seed, epoch=epoch) for seed, epoch in seed_and_epoch]
    return [view.bins(np.arange(NUM_BINS)).ids.reshape(NUM_BINS, BIN_SIZE) for view in views]


def test_adjacent_epochs_share_bin_mates_by_chance_only():
    assert overlap_probability(real_epochs([(7, epoch) for epoch in range(NUM_EPOCHS)])) > ALPHA


def test_adjacent_seeds_share_bin_mates_by_chance_only():
    assert overlap_probability(real_epochs([(seed, 7) for seed in range(NUM_EPOCHS)])) > ALPHA


@pytest.mark.parametrize("mixer", [rotation, affine])
def test_controls_share_too_many_or_too_few(mixer):
    total = NUM_BINS * BIN_SIZE
    epochs = [mixer(total, epoch, np.arange(total)).reshape(NUM_BINS, BIN_SIZE) for epoch in range(NUM_EPOCHS)]
    assert overlap_probability(epochs) < ALPHA**2


@pytest.mark.parametrize("purpose", ["bins", "pool"])
def test_adjacent_epochs_are_uncorrelated(purpose):
    """An element's place tells nothing of its place one epoch later, nor of the same place under the next seed."""
    size = 100_003
    coordinates = [(11, 0), (11, 1), (11, 2), (12, 0), (12, 1), (0, 11)]
    images = [Permutation(size, derive_key(*pair, purpose)).forward(np.arange(size)) for pair in coordinates]
    correlations = np.corrcoef(images)[np.triu_indices(len(images), 1)]
    probabilities = [both_sides(stats.norm, r * sqrt(size - 1)) for r in correlations]
    assert min(probabilities) * len(probabilities) > ALPHA
    control = [rotation(size, epoch, np.arange(size)) for epoch in range(2)]
    assert both_sides(stats.norm, np.corrcoef(control)[0, 1] * sqrt(size - 1)) < ALPHA**2
