"""A stage that is appended to a mixture changes what comes after it, and nothing before."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.epoch.counted import counting, run_of

from packhorse.epoch import Mixture, Stage, first_difference


@given(
    st.lists(st.tuples(st.integers(1, 400), st.tuples(*[st.integers(0, 5)] * 3)), max_size=4),
    st.integers(20, 150),
    st.integers(0, 2**64 - 1),
)
@settings(max_examples=40)
def test_appending_changes_nothing_before_and_loses_nothing_after(changes, num_bins, seed):
    names = ("web", "code", "chat")
    parts = [counting(n, size) for n, size in zip(names, (7, 31, 53), strict=True)]
    mixture = Mixture(parts, [Stage({"web": 3, "code": 2})], seed=seed, num_bins=num_bins)
    before = run = run_of(mixture, 4)
    for position, weights in sorted({p: w for p, w in changes if any(w)}.items()):
        older = mixture
        mixture = mixture.appended(Stage(dict(zip(names, weights, strict=True))), position)
        run = run_of(mixture, 4)
        assert run[:position] == before[:position]
        assert mixture.num_bins == num_bins
        assert first_difference(older.chain, mixture.chain) == position
        assert mixture.chain[:-1] == older.chain
        assert mixture.chain[-1][0] == position
        before = run
    for d, size in enumerate((7, 31, 53)):  # epoch after epoch, each of its own order, each bin once
        ours = [i for dataset, i in run if dataset == d]
        for first in range(0, len(ours), size):
            part = ours[first : first + size]
            assert len(set(part)) == len(part)
        assert (
            ours
            == [
                i
                for e in range(len(ours) // size + 1)
                for i in parts[d].source_of(e).bins(np.arange(size)).ids.tolist()
            ][: len(ours)]
        )


def test_a_new_component_is_appended():
    mixture = Mixture([counting("web", 50)], [Stage({"web": 1})], seed=1, num_bins=100)
    longer = mixture.appended(Stage({"web": 1, "code": 1}), 60, [counting("code", 30)])
    ours, theirs = run_of(longer, 1), run_of(mixture, 1)
    assert ours[:60] == theirs[:60]
    assert sum(d for d, _ in ours[60:]) == 20
    assert [i for d, i in ours if d == 0] == [i for _, i in theirs[:80]]


def test_draws_are_whole_and_part_of_the_digest():
    parts = [counting("web", 50), counting("code", 3)]
    plain, drawn = (Mixture(parts, [Stage({"web": 1})], seed=1, num_bins=40, bins_per_draw=n) for n in (1, 4))
    assert plain.chain != drawn.chain
    assert first_difference(drawn.chain, drawn.appended(Stage({"code": 1}), 48).chain) == 48
    with pytest.raises(
        ValueError, match=r"num_bins 42 is not a multiple of 4, the bins in a row that .* take 40 or 44"
    ):
        Mixture(parts, [Stage({"web": 1})], seed=1, num_bins=42, bins_per_draw=4)
    with pytest.raises(ValueError, match=r"until of stage 0, position 3 is not a multiple of 4, .*: take 4"):
        drawn.appended(Stage({"web": 1}), 3)
    with pytest.raises(
        ValueError, match="code has fewer bins than the 4 of a step, which are of one component: leave it out"
    ):
        Mixture(parts, [Stage({"web": 1, "code": 1})], seed=1, when_out="stop", bins_per_draw=4)


def test_a_stage_is_appended_where_some_have_run_out():
    parts = [counting("web", 70), counting("code", 50), counting("chat", 9)]
    stage = Stage({"web": 7, "code": 2, "chat": 1})
    mixture = Mixture(parts, [stage], seed=1, when_out="reweigh")
    longer = mixture.appended(Stage({"web": 1, "code": 9, "chat": 1}), 129 + 95)
    ours, theirs = run_of(longer, 3), run_of(mixture, 3)
    assert mixture.num_bins == 129
    assert ours[: 129 + 95] == theirs[: 129 + 95]
    assert ours[129 + 95 :] != theirs[129 + 95 :]
    for e in range(2):
        assert sorted(ours[e * 129 : (e + 1) * 129]) == sorted(theirs[:129])
    with pytest.raises(ValueError, match=r"all components of stage 1 have .* position 120 of epoch 1: give an"):
        Mixture(parts, [stage], seed=1, when_out="reweigh", num_bins=128).appended(Stage({"web": 7, "code": 2}), 119)
    with pytest.raises(ValueError, match="all components of stage 0 have given their bins at position 129 of"):
        Mixture(parts, [stage], seed=1, when_out="reweigh", num_bins=130)


@pytest.mark.parametrize("stage_bins", [5, 7, 11])
def test_each_component_has_its_share_over_many_short_stages(stage_bins):
    """What a stage owes a component at its end, the next one gives: else each stage adds an error of its own."""
    names, num_bins = ("web", "code", "chat"), 330
    parts = [counting(name, size) for name, size in zip(names, (70, 31, 53), strict=True)]
    weights = [{"web": 3, "code": 2}, {"web": 1, "code": 1, "chat": 1}, {"web": 5, "chat": 2, "code": 1}]
    mixture = Mixture(parts, [Stage(weights[0])], seed=2, num_bins=num_bins)
    for number in range(1, num_bins // stage_bins):
        mixture = mixture.appended(Stage(weights[number % 3]), number * stage_bins)
    got = np.array([dataset for dataset, _ in run_of(mixture, 1)])
    last = num_bins // stage_bins - 1
    for number, name in enumerate(names):
        of_stage = [each.get(name, 0) / sum(each.values()) for each in weights]
        due = np.cumsum([of_stage[min(position // stage_bins, last) % 3] for position in range(num_bins)])
        assert np.abs(np.cumsum(got == number) - due).max() < 2
