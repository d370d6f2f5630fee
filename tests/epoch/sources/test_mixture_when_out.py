"""What a mixture does where a component has given all its bins: it stops, goes on without it, or repeats it."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.epoch.counted import counting, dealt

from packhorse.epoch import Mixture, Stage


@pytest.mark.parametrize("when_out", ["repeat", "stop", "reweigh"])
def test_steps_of_one_component_are_as_exact(when_out):
    """Proportions hold in steps, and no bin comes twice where none is repeated."""
    parts = [counting("web", 1000), counting("code", 615)]
    mixture = Mixture(parts, [Stage({"web": 7, "code": 3})], seed=3, when_out=when_out, bins_per_draw=6)
    assert mixture.num_bins == 6 * (237 if when_out == "stop" else 166 + 102)
    for epoch in range(2):
        bins = mixture.epoch(epoch).bins(np.arange(mixture.num_bins))
        steps = bins.component_ids.reshape(-1, 6)
        assert (steps == steps[:, :1]).all()
        num = int((steps[:, 0] == 0).sum())
        assert num == 166 if when_out == "reweigh" else abs(num - 0.7 * len(steps)) < 1
        if when_out != "repeat":
            for d in range(2):
                ours = bins.ids[bins.component_ids == d].tolist()
                assert ours == parts[d].source_of(epoch).bins(np.arange(len(ours))).ids.tolist()
    found = mixture.epoch(0).locate([5])
    for dataset, position in zip(found.component_ids.tolist(), found.positions.tolist(), strict=True):
        if position >= 0:
            bins = mixture.epoch(0).bins([position])
            assert (bins.ids.tolist(), bins.component_ids.tolist()) == ([5], [dataset])


def test_stop_gives_no_bin_twice_in_an_epoch():
    parts = [counting("web", 70), counting("code", 50)]
    mixture = Mixture(parts, [Stage({"web": 7, "code": 3})], seed=1, when_out="stop")
    assert mixture.num_bins == 100
    for epoch in range(3):
        bins = mixture.epoch(epoch).bins(np.arange(100))
        assert np.bincount(bins.component_ids).tolist() == [70, 30]
        ours = bins.ids[bins.component_ids == 1]
        assert ours.tolist() == parts[1].source_of(epoch).bins(np.arange(30)).ids.tolist()
    with pytest.raises(ValueError, match="web has 70 bins and would give 84 in epoch 0 of the mixture: lower its"):
        Mixture(parts, [Stage({"web": 7, "code": 3})], seed=1, when_out="stop", num_bins=120)
    with pytest.raises(ValueError, match=r"code has 50 bins and would give \d+ in epoch 1 of the mixture"):
        mixture.appended(Stage({"code": 1}), 140)


@pytest.mark.parametrize("seed", range(40))
def test_what_a_stage_takes_too_early_is_no_reason_to_refuse_a_seed(seed):
    """The first stage gives two or three of three bins to anybody, so the second has to take what is left."""
    sizes = {"a": 40, "b": 2, "d": 2}
    stages = [Stage({"a": 7, "b": 5, "d": "0.65"}, until=3), Stage({"a": 5, "b": 3})]
    mixture = Mixture([counting(*each) for each in sizes.items()], stages, seed=seed, when_out="stop")
    assert mixture.num_bins == 5
    for epoch in range(3):
        bins = mixture.epoch(epoch).bins(np.arange(5))
        for d, size in enumerate(sizes.values()):
            ours = bins.ids[bins.component_ids == d].tolist()
            assert ours == mixture.components[d].source_of(epoch).bins(np.arange(size)).ids.tolist()[: len(ours)]


@given(
    sizes=st.lists(st.integers(1, 900), min_size=1, max_size=5),
    weights=st.lists(st.sampled_from([1, 2, 7, "0.3", "1/7", "123/1000"]), min_size=5, max_size=5),
    most_epochs=st.lists(st.integers(1, 3), min_size=5, max_size=5),
    epoch=st.integers(0, 3),
    seed=st.integers(0, 2**64 - 1),
)
@settings(max_examples=50)
def test_what_runs_out_leaves_and_the_others_keep_their_proportions(sizes, weights, most_epochs, epoch, seed):
    names = [f"c{d}" for d in range(len(sizes))]
    weights = [Fraction(str(weight)) for weight in weights[: len(sizes)]]
    parts = [replace(counting(*each), most_epochs=most) for *each, most in zip(names, sizes, most_epochs, strict=False)]
    mixture = Mixture(parts, [Stage(dict(zip(names, weights, strict=True)))], seed=seed, when_out="reweigh")
    due = [part.num_bins * part.most_epochs for part in parts]
    assert mixture.num_bins == sum(due)
    source = mixture.epoch(epoch)
    bins = source.bins(np.arange(sum(due)))
    for d, part in enumerate(parts):  # its next epochs, each bin once in each
        ours = [
            part.source_of(epoch * part.most_epochs + e).bins(np.arange(part.num_bins)).ids.tolist()
            for e in range(part.most_epochs)
        ]
        assert bins.ids[bins.component_ids == d].tolist() == [i for ids in ours for i in ids]
        found = source.locate([0])
        assert (
            sorted(found.positions[found.component_ids == d].tolist())
            == np.flatnonzero((bins.component_ids == d) & (bins.ids == 0)).tolist()
        )
    for end in [*range(0, sum(due), 13), sum(due)]:
        nums = np.bincount(bins.component_ids[:end], minlength=len(sizes)).tolist()
        for num, exactly in zip(nums, exactly_due(weights, due, end), strict=True):
            assert abs(num - exactly) <= (2 if len(sizes) <= 3 else 1 + len(sizes) / 2)


def exactly_due(weights, most, num):
    """Gives what is due by weight, again and again without those that have all of theirs."""
    given = [Fraction(0)] * len(weights)
    rest = Fraction(num)
    while rest:
        there = [d for d, each in enumerate(given) if weights[d] and each < most[d]]
        whole = sum(weights[d] for d in there)
        step = min(rest, *((most[d] - given[d]) / weights[d] * whole for d in there))
        for d in there:
            given[d] += weights[d] / whole * step
        rest -= step
    return given


def test_a_thousand_shards_run_out_one_by_one():
    parts = [counting(f"c{d}", 20 + d % 40) for d in range(1000)]
    mixture = Mixture(parts, [Stage({part.name: 1 for part in parts})], seed=1, when_out="reweigh")
    source = mixture.epoch(2)
    sizes = [part.num_bins for part in parts]
    assert source.num_bins == sum(sizes)
    assert np.bincount(dealt(mixture, 2)).tolist() == sizes
