"""Mixtures: the proportions of what they deal, epochs of theirs and of their components, and what they refuse."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.epoch.counted import counting, dealt, run_of

from packhorse.epoch import Component, Mixture, SkipSource, Stage
from packhorse.epoch.sources import _component_order
from packhorse.topology import Skips


def due_after(stages, num):
    """What is due to each component after 0, 1, … num positions: float [num + 1, C]; stages have (weights, until)."""
    due, first = [np.zeros((1, len(stages[0][0])))], 0
    for weights, until in stages:
        until = num if until is None else min(until, num)
        share = np.array([float(weight / sum(weights)) for weight in weights])
        due.append(due[-1][-1] + np.arange(1, max(until - first, 0) + 1)[:, np.newaxis] * share)
        first = max(until, first)
    return np.concatenate(due)


def given_after(components, num_components):
    """How many positions each component has had after 0, 1, … of them: int [N + 1, C]."""
    return np.cumsum(
        np.vstack([np.zeros(num_components, int), components[:, np.newaxis] == np.arange(num_components)]), 0
    )


def most_off(num_components):
    """How far a component may be off, in bins."""
    return 2 if num_components <= 3 else 1 + num_components / 2


@pytest.mark.parametrize(
    "weights",
    [(70, 20, 10), (1, 1, 1), (0.7, 0.2999, 0.0001), ("1/3", "1/7", "1/11"), (123_457, 765_431, 99), (5, 0, 2**30)],
)
def test_no_component_is_two_bins_off_after_any_position(weights):
    weights = [Fraction(str(w)) for w in weights]
    names = ("web", "code", "chat")
    mixture = Mixture(
        [counting(n, 90_000) for n in names], [Stage(dict(zip(names, weights, strict=True)))], seed=1, num_bins=300_000
    )
    off = abs(given_after(dealt(mixture), 3) - due_after([(weights, None)], 300_000))
    assert off.max() < (1 if 0 in weights else 2)


@pytest.mark.parametrize(("weights", "num_bins"), [((90, 10, "0.002"), 400), (("0.6547", "0.3453"), 10_000)])
def test_rare_components_and_weights_of_many_digits_are_as_exact(weights, num_bins):
    """47 and 52 bins off where blocks of positions were dealt by one permutation; 700 bins are no draw."""
    weights, names = [Fraction(str(w)) for w in weights], ["a", "b", "c"][: len(weights)]
    parts = [counting(name, 50) for name in names]
    mixture = Mixture(parts, [Stage(dict(zip(names, weights, strict=True)))], seed=4, num_bins=num_bins)
    run = np.concatenate([dealt(mixture, epoch) for epoch in range(5)])
    off = abs(given_after(run, len(names)) - due_after([(weights, None)], len(run)))
    assert off.max() < (1 if len(names) == 2 else 2)


def written(digits):
    """Weights of so many digits, of any size."""
    return st.builds(
        lambda whole, power: Fraction(whole, 10**power), st.integers(1, 10**digits), st.integers(0, digits)
    )


@given(st.data())
@settings(max_examples=30)
def test_every_component_keeps_its_share_over_stages_and_epochs(data):
    num_components = data.draw(st.integers(1, 14))
    names = [f"c{d}" for d in range(num_components)]
    ends = sorted(data.draw(st.sets(st.integers(1, 450), max_size=3)))
    weight = st.integers(1, 20).flatmap(written)
    weights = st.lists(weight, min_size=num_components, max_size=num_components)
    stages = [(data.draw(weights.filter(few_apart)), until) for until in (*ends, None)]
    num_bins = data.draw(st.integers(1, 400))
    mixture = Mixture(
        [counting(name, 1 + 7 * d) for d, name in enumerate(names)],
        [Stage(dict(zip(names, each, strict=True)), until) for each, until in stages],
        seed=data.draw(st.integers(0, 2**64 - 1)),
        num_bins=num_bins,
    )
    num_epochs = 600 // num_bins + 1
    run = np.concatenate([dealt(mixture, epoch) for epoch in range(num_epochs)])
    given_bins = given_after(run, num_components)
    off = abs(given_bins - due_after(stages, len(run)))
    assert off.max() <= most_off(num_components) + (0.5 if ends else 0)  # while a debt is paid
    for epoch in range(num_epochs):
        begins = [e * (1 + 7 * d) + position for d, (e, position) in enumerate(mixture._begins(epoch))]
        assert begins == given_bins[epoch * num_bins].tolist()


def few_apart(weights):
    """Whether nobody is due less than once in 2^40 positions, which is refused."""
    return min(weights) * 2**40 >= sum(weights)


def test_who_is_due_too_rarely_is_refused():
    parts = [counting("web", 9), counting("code", 9)]
    with pytest.raises(ValueError, match="web has less than one bin in 1099511627776 in stage 0: give it a larger"):
        Mixture(parts, [Stage({"web": 1, "code": 2**40})], seed=1)


@pytest.mark.parametrize("weights", [(2, 3), (1, 1), (70, 20, 10), (1, 2, 3, 4, 5, 6, 7, 8)])
def test_the_order_has_no_period(weights):
    """Every residue of every period gets each component's share, and the spectrum has no line."""
    names = [f"c{d}" for d in range(len(weights))]
    parts = [counting(name, 9) for name in names]
    mixture = Mixture(parts, [Stage(dict(zip(names, weights, strict=True)))], seed=6, num_bins=2**15)
    run = dealt(mixture)
    for d, weight in enumerate(weights):
        share, ours = weight / sum(weights), run == d
        for period in (2, 3, 5, 7, 8, 10, 36, 64):
            each = ours[: len(ours) // period * period].reshape(-1, period)
            spread = (share * (1 - share) / len(each)) ** 0.5  # of independent draws
            assert abs(each.mean(axis=0) - share).max() < 4.5 * spread
        power = abs(np.fft.rfft(ours - share)) ** 2 / len(ours)
        assert power.max() < 40 * share * (1 - share)  # a line would grow with the number of bins


def test_positions_far_along_a_run_are_found_as_quickly():
    """Epochs whose positions of the run are beyond 2^63."""
    parts = [counting("web", 7), counting("code", 5)]
    mixture = Mixture(parts, [Stage({"web": 2, "code": 1})], seed=1, num_bins=12)
    assert np.bincount(dealt(mixture, 2**61)).tolist() == [8, 4]
    epoch = mixture.epoch(2**61)
    for position in range(12):
        bins = epoch.bins([position])
        found = epoch.locate(bins.ids)
        assert (bins.component_ids[0], position) in set(zip(found.component_ids, found.positions, strict=True))


def test_it_makes_no_difference_how_many_positions_are_dealt_together(monkeypatch):
    def epoch():
        components = [counting("web", 60_000), counting("code", 40_000)]
        return Mixture(components, [Stage({"web": 2, "code": 1})], seed=5, num_bins=50_000).epoch(1)

    positions = np.random.default_rng(3).permutation(50_000)
    together = epoch().bins(positions)
    monkeypatch.setattr(_component_order, "_CHUNK", 7)
    monkeypatch.setattr(_component_order, "_MOST_BYTES", 1)
    some = np.sort(positions[:300])
    alone = epoch().bins(some)
    expected = together.take(np.argsort(positions)[some])
    assert alone.ids.tolist() == expected.ids.tolist()
    assert alone.component_ids.tolist() == expected.component_ids.tolist()


def test_weights_like_sizes_give_every_bin_once_in_every_epoch():
    """Shards of one corpus, in turn."""
    sizes = {"a": 1234, "b": 77, "c": 4001, "d": 1}
    mixture = Mixture([counting(*each) for each in sizes.items()], [Stage(sizes)], seed=3)
    assert mixture.num_bins == sum(sizes.values())
    for epoch in range(3):
        bins = mixture.epoch(epoch).bins(np.arange(mixture.num_bins))
        came = sorted(zip(bins.component_ids.tolist(), bins.ids.tolist(), strict=True))
        assert came == [(d, i) for d, size in enumerate(sizes.values()) for i in range(size)]


def test_weights_by_tokens():
    """Bins of one component are half as full, so it takes twice as many."""
    parts = [counting("web", 50, num_tokens=200), counting("code", 50, num_tokens=100)]
    mixture = Mixture(parts, [Stage({"web": 1, "code": 1}, by="tokens")], seed=1, num_bins=3000)
    assert np.bincount(dealt(mixture)).tolist() == [1000, 2000]


def test_one_component_is_its_own_epochs_in_order(prepared):
    small = prepared({3: 40, 5: 30}, 10)
    alone = Component.of("alone", lambda epoch: small.view(1, epoch))
    mixture = Mixture([alone], [Stage({"alone": 2})], seed=9)
    for epoch in range(3):
        every = np.arange(small.plan.num_bins)
        assert mixture.epoch(epoch).bins(every).ids.tolist() == small.view(1, epoch).bins(every).ids.tolist()


def test_order_and_pairings_change_from_epoch_to_epoch():
    mixture = Mixture([counting("web", 40), counting("code", 40)], [Stage({"web": 1, "code": 1})], seed=1)
    first, second = (run_of(mixture, 2)[a : a + 80] for a in (0, 80))
    assert sorted(first) == sorted(second)
    assert [d for d, _ in first] != [d for d, _ in second]
    for d in range(2):
        assert [i for e, i in first if e == d] != [i for e, i in second if e == d]


def test_far_epochs_cost_no_more():
    parts = [counting("web", 7), counting("code", 5)]
    mixture = Mixture(
        parts, [Stage({"web": 2, "code": 1}, until=50), Stage({"web": 1, "code": 2})], seed=1, num_bins=30
    )
    far = 10**12
    given_bins = [0, 0]
    for epoch in range(3):
        given_bins = np.add(given_bins, np.bincount(dealt(mixture, epoch), minlength=2))
    ours = given_bins + (far - 3) * np.array([10, 20])
    begins = [epoch * size + position for size, (epoch, position) in zip((7, 5), mixture._begins(far), strict=True)]
    assert sum(begins) == far * 30
    assert abs(begins[0] - ours[0]) <= 2
    assert len(mixture.epoch(far).bins([29])) == 1


@pytest.mark.parametrize("num_bins", [7, 1000, 2500])
def test_a_weight_below_a_bin_an_epoch_is_exact_over_a_run(num_bins):
    """It is due every 2,500 bins: not none in every epoch, nor one."""
    weights = {"web": "0.6", "code": "0.3996", "rare": "0.0004"}
    mixture = Mixture([counting(name, 40) for name in weights], [Stage(weights)], seed=1, num_bins=num_bins)
    for num_epochs in (1, 4, 30):
        given_bins = sum(np.bincount(dealt(mixture, epoch), minlength=3) for epoch in range(num_epochs))
        begins = [epoch * 40 + position for epoch, position in mixture._begins(num_epochs)]
        assert given_bins.tolist() == begins
        for weight, num in zip(weights.values(), begins, strict=True):
            assert abs(num - Fraction(weight) * num_epochs * num_bins) < 2
    assert mixture._begins(25 * 10**14)[2] == divmod(num_bins * 10**12, 40)


def test_what_is_due_is_counted_on_where_a_stage_begins_within_an_epoch():
    weights = {"web": 5, "code": 3, "rare": 1}
    stages = [Stage({"web": 1}, until=13), Stage(weights)]
    mixture = Mixture([counting(name, 40) for name in weights], stages, seed=1, num_bins=20)
    given_bins = np.array([13, 0, 0])
    given_bins += np.bincount(dealt(mixture)[13:], minlength=3)
    for epoch in range(1, 40):
        given_bins += np.bincount(dealt(mixture, epoch), minlength=3)
        due = np.array([13, 0, 0]) + np.array([5, 3, 1]) * ((epoch + 1) * 20 - 13) / 9
        assert (abs(given_bins - due) < 2).all()


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([], "needs at least one stage"),
        ([Stage({"web": 1}, until=5)], "the last stage has no end: leave out its until"),
        ([Stage({"web": 1}), Stage({"web": 1})], "stage 0 needs an until"),
        ([Stage({"web": 1}, 5), Stage({"web": 1}, 5), Stage({"web": 1})], "until of stage 1 must be an integer of at"),
        ([Stage({"wbe": 1})], "stage 0 weighs wbe, which is no component: there are code, web"),
        ([Stage({"web": 0})], "all weights of stage 0 are 0"),
        ([Stage({"web": -1})], "weight of web in stage 0 must be a number of at least 0, got -1"),
        ([Stage({"web": True})], "weight of web in stage 0 must be a number of at least 0, got True"),
        ([Stage({"web": float("nan")})], "weight of web in stage 0 must be a number of at least 0, got nan"),
        ([Stage({"web": 1}, by="tokens")], "weights of stage 0 are by tokens: web needs its num_tokens"),
        ([Stage({"web": 1, "none": 1})], "none has a weight in stage 0, but no bins"),
    ],
)
def test_what_is_wrong_is_named(stages, message):
    parts = [counting("web", 5), counting("code", 5)]
    if "no bins" in message:
        parts.append(Component.of("none", lambda epoch: SkipSource(parts[0].source_of(epoch), Skips.of([(0, 5)]))))
    with pytest.raises(ValueError, match=message):
        Mixture(parts, stages, seed=1)


def test_names_and_earlier_positions_are_refused():
    with pytest.raises(ValueError, match="two components are called web"):
        Mixture([counting("web", 5), counting("web", 6)], [Stage({"web": 1})], seed=1)
    with pytest.raises(ValueError, match="at least one component"):
        Mixture([], [Stage({"web": 1})], seed=1)
    mixture = Mixture([counting("web", 5)], [Stage({"web": 1}, 40), Stage({"web": 1})], seed=1)
    with pytest.raises(ValueError, match="position 40 is not beyond 40, where the last stage begins"):
        mixture.appended(Stage({"web": 2}), 40)
    with pytest.raises(ValueError, match=r"positions must be in \[0, 5\), got 5"):
        mixture.epoch(0).bins([5])
    assert len(mixture.epoch(0).locate([]).ids) == len(mixture.epoch(0).bins([])) == 0
