"""Mixtures, and sources made of sources three levels deep, against lists that are built position by position."""

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import floor, gcd, lcm

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.epoch import (
    Assignment,
    Component,
    EpochView,
    JoinedSource,
    Mixture,
    Permutation,
    PlanIndex,
    SkipSource,
    Stage,
    WindowedView,
    derive_key,
    parting,
)
from packhorse.topology import RemainderPolicy, Skips


@dataclass(frozen=True)
class Leaf:
    """A prepared dataset's epochs, in windows where num_windows is given."""

    small: object
    seed: int
    num_windows: int | None
    num_datasets = 1

    def source_of(self, epoch):
        if self.num_windows is None:
            return self.small.view(self.seed, epoch)
        return WindowedView(self.small.plan, self.small.pool, seed=self.seed, epoch=epoch, num_windows=self.num_windows)

    def lists(self, epoch):
        """(dataset, ids, lengths) of every bin; test_view and test_windows prove these."""
        bins = self.source_of(epoch).bins(np.arange(self.small.plan.num_bins))
        parts = (np.split(array, bins.bin_ends[:-1]) for array in (bins.ids, bins.lengths))
        return [(0, ids.tolist(), lengths.tolist()) for ids, lengths in zip(*parts, strict=True)]


@dataclass(frozen=True)
class Skipped:
    inner: object
    ranges: tuple

    @property
    def num_datasets(self):
        return self.inner.num_datasets

    def source_of(self, epoch):
        return SkipSource(self.inner.source_of(epoch), Skips.of(self.ranges))

    def lists(self, epoch):
        skipped = {p for a, b in self.ranges for p in range(a, b)}
        return [one for p, one in enumerate(self.inner.lists(epoch)) if p not in skipped]


@dataclass(frozen=True)
class Joined:
    """Bins of `inner`, so many in a row; `rows` tells of every sequence which of them it came from."""

    inner: object
    rows_per_bin: int
    num_datasets = 1

    def source_of(self, epoch):
        return JoinedSource(self.inner.source_of(epoch), self.rows_per_bin)

    def lists(self, epoch):
        return [(0, ids, lengths) for ids, lengths, _ in self.with_rows(epoch)]

    def with_rows(self, epoch):
        short = [(ids, lengths) for _, ids, lengths in self.inner.lists(epoch)]
        runs = [short[p : p + self.rows_per_bin] for p in range(0, len(short), self.rows_per_bin)]
        return [
            (
                [i for ids, _ in run for i in ids],
                [n for _, lengths in run for n in lengths],
                [row for row, (ids, _) in enumerate(run) for _ in ids],
            )
            for run in runs
        ]


@dataclass(frozen=True)
class Mixed:
    parts: tuple
    stages: tuple
    """(weights, until) of each stage."""
    seed: int
    num_bins: int
    bins_per_draw: int = 1

    @property
    def num_datasets(self):
        return sum(part.num_datasets for part in self.parts)

    def mixture(self):
        components = [
            Component.of(f"c{d}", part.source_of, num_datasets=part.num_datasets) for d, part in enumerate(self.parts)
        ]
        stages = [Stage({f"c{d}": w for d, w in enumerate(weights)}, until) for weights, until in self.stages]
        return Mixture(components, stages, seed=self.seed, num_bins=self.num_bins, bins_per_draw=self.bins_per_draw)

    def source_of(self, epoch):
        return self.mixture().epoch(epoch)

    def lists(self, epoch):
        """Goes through the whole run, bin by bin; every component gives what comes next in its own epochs."""
        given = [self._endless(d) for d in range(len(self.parts))]
        run = [next(given[d]) for e in range(epoch + 1) for d in self.dealt(e)]
        return run[epoch * self.num_bins :]

    def _endless(self, d):
        first = sum(part.num_datasets for part in self.parts[:d])
        epoch = 0
        while True:
            yield from ((first + dataset, ids, lengths) for dataset, ids, lengths in self.parts[d].lists(epoch))
            epoch += 1

    def dealt(self, epoch):
        """The component of every position of an epoch."""
        key = derive_key(self.seed, epoch, "mixture")
        per_epoch = self.num_bins // self.bins_per_draw
        begin, end = epoch * per_epoch, (epoch + 1) * per_epoch
        firsts = [0, *(until // self.bins_per_draw for _, until in self.stages[:-1])]
        dealt = []
        for (weights, _), first, until in zip(self.stages, firsts, [*firsts[1:], end], strict=True):
            a, b = max(first, begin) - begin, min(until, end) - begin
            if a < b:
                dealt += self.segment(weights, per_epoch - a, key, a)[: b - a]
        return [component for component in dealt for _ in range(self.bins_per_draw)]

    @staticmethod
    def segment(weights, length, key, tweak):
        weights = [Fraction(str(w)) for w in weights]
        scale = lcm(*(w.denominator for w in weights))
        parts = [int(w * scale) for w in weights]
        whole = sum(parts) // gcd(*parts)
        block = 1
        if whole <= 65536:
            block = whole
            while block < 1024:
                block += whole
        else:
            least = min(w for w in weights if w) / sum(weights)
            while block < 1024 or least * block < 1:
                block *= 2
        up_to = [sum(weights[:d], Fraction(0)) / sum(weights) for d in range(len(weights) + 1)]
        edges = [*range(0, max(length // block, 1) * block, block), length]
        components = []
        for start, stop in pairwise(edges):
            counts = [
                floor(b * stop) - floor(a * stop) - floor(b * start) + floor(a * start) for a, b in pairwise(up_to)
            ]
            slots = [d for d, count in enumerate(counts) for _ in range(count)]
            order = Permutation(stop - start, key, tweak + start).forward(np.arange(stop - start))
            components += [slots[o] for o in order.tolist()]
        return components


SEEDS = st.integers(0, 2**64 - 1)
WEIGHTS = st.one_of(st.integers(0, 9), st.sampled_from(["0.7", "1/3", 0.1234567, 1e-3]))


@st.composite
def leaves(draw, epochs):
    small, seed, _ = draw(epochs)
    made = Leaf(small, seed, draw(st.none() | st.integers(1, 9)))
    if draw(st.booleans()) and small.plan.num_bins > 1:
        a = draw(st.integers(0, small.plan.num_bins - 1))
        b = draw(st.integers(a + 1, small.plan.num_bins))
        if b - a < small.plan.num_bins:
            made = Skipped(made, ((a, b),))
    return Joined(made, draw(st.integers(2, 5))) if draw(st.booleans()) else made


@st.composite
def mixed(draw, of):
    parts = tuple(draw(st.lists(of, min_size=1, max_size=4)))
    positive = st.lists(WEIGHTS, min_size=len(parts), max_size=len(parts)).filter(lambda w: any(map(bool, w)))
    per_draw = draw(st.sampled_from([1, 1, 2, 5]))
    untils = sorted(draw(st.sets(st.integers(1, 250 // per_draw), max_size=2)))
    stages = tuple((tuple(draw(positive)), until and until * per_draw) for until in [*untils, None])
    return Mixed(parts, stages, draw(SEEDS), per_draw * draw(st.integers(1, 90 // per_draw)), per_draw)


def check_against_lists(made, epoch, bins_of, data):
    source, expected = made.source_of(epoch), made.lists(epoch)
    assert source.num_bins == len(expected)
    every = np.arange(source.num_bins)
    bins = source.bins(every)
    assert bins.dataset_ids.dtype == np.int32
    assert bins.dataset_ids.tolist() == [dataset for dataset, _, _ in expected]
    whole = bins_of(bins)
    assert whole == [(p, tuple(ids), tuple(lengths)) for p, (_, ids, lengths) in enumerate(expected)]
    assert source.costs(every, 7).tolist() == [sum(7 * n + n * n for n in lengths) for _, _, lengths in expected]
    assert max((len(ids) for _, ids, _ in expected), default=0) <= source.max_sequences_per_bin
    assert max((sum(lengths) for _, _, lengths in expected), default=0) <= source.max_seq_len
    wanted = data.draw(st.lists(st.integers(0, max(source.num_bins - 1, 0)), max_size=10 if source.num_bins else 0))
    some = source.bins(wanted)
    assert bins_of(some) == [whole[p] for p in wanted]
    assert some.dataset_ids.tolist() == bins.dataset_ids[wanted].tolist()
    places = {}
    for p, (dataset, ids, lengths) in enumerate(expected):
        for j, (i, n) in enumerate(zip(ids, lengths, strict=True)):
            places.setdefault(i, []).append((dataset, p, j, n))
    asked = [*places, *list(places)[:3], -5, 2**41]
    found = source.locate(asked)
    fields = (found.dataset_ids, found.positions, found.index_in_bin, found.lengths)
    rows = {}
    for i, row in zip(found.ids.tolist(), zip(*(field.tolist() for field in fields), strict=True), strict=True):
        rows.setdefault(i, []).append(row)
    assert rows.pop(-5) == rows.pop(2**41) == [(-1, -1, -1, -1)]
    repeated = set(list(places)[:3])
    assert rows.keys() == places.keys()
    for i, ours in rows.items():
        times = 1 + (i in repeated)
        assert sorted(row for row in ours if row[1] >= 0) == sorted(times * places[i])
        elsewhere = [row[0] for row in ours if row[1] < 0]  # datasets that have the id, but not in this epoch
        if isinstance(made, Mixed):
            assert not set(elsewhere) & {row[0] for row in places[i]}
            assert len(elsewhere) == times * len(set(elsewhere))


def test_mixtures_follow_the_lists(epochs, bins_of):
    @given(mixed(leaves(epochs)), st.integers(0, 3), st.data())
    @settings(max_examples=150, deadline=None)
    def check(made, epoch, data):
        check_against_lists(made, epoch, bins_of, data)

    check()


def test_compositions_three_levels_deep_follow_the_lists(epochs, bins_of):
    """A mixture of mixtures of windows with skips, with skips of its own."""

    @given(mixed(leaves(epochs) | mixed(leaves(epochs))), st.integers(0, 20), st.integers(0, 1), st.data())
    @settings(max_examples=100, deadline=None)
    def check(made, first, epoch, data):
        ranges = ((first, first + 7),) if first + 7 < made.num_bins else ()
        check_against_lists(Skipped(made, ranges), epoch, bins_of, data)

    check()


def counting(name, num_bins, num_tokens=None):
    """A component of bins with one sequence each, whose ids are rows."""
    plan = PlanIndex.build({(4,): num_bins}, {4: num_bins}, 4)

    def source_of(epoch):
        return EpochView(plan, np.arange(num_bins), seed=len(name), epoch=epoch)

    return Component.of(name, source_of, num_tokens=num_tokens, digest=f"{name}-{num_bins}")


def dealt(mixture, epoch=0):
    return mixture.epoch(epoch).bins(np.arange(mixture.num_bins)).dataset_ids


@pytest.mark.parametrize(
    "weights",
    [(70, 20, 10), (1, 1, 1), (0.7, 0.2999, 0.0001), ("1/3", "1/7", "1/11"), (123_457, 765_431, 99), (5, 0, 2**40)],
)
def test_no_component_is_a_bin_off_after_any_block(weights):
    weights = [Fraction(str(w)) for w in weights]
    names = ("web", "code", "chat")
    if min(w for w in weights if w) * 65536 < sum(weights):
        with pytest.raises(ValueError, match="web has less than one bin in 65536 in stage 0: put the small components"):
            Mixture([counting(n, 9) for n in names], [Stage(dict(zip(names, weights, strict=True)))], seed=1)
        return
    mixture = Mixture(
        [counting(n, 90_000) for n in names], [Stage(dict(zip(names, weights, strict=True)))], seed=1, num_bins=300_000
    )
    block, given_bins = mixture._shares[0].block, dealt(mixture)
    for end in [*range(block, (300_000 // block - 1) * block + 1, block), 300_000]:
        for d, num in enumerate(np.bincount(given_bins[:end], minlength=3).tolist()):
            assert abs(num - weights[d] / sum(weights) * end) < 1
            if sum(mixture._shares[0].parts) <= 65536 and end < 300_000:
                assert num == weights[d] / sum(weights) * end


def test_weights_like_sizes_give_every_bin_once_in_every_epoch():
    """Shards of one corpus, in turn."""
    sizes = {"a": 1234, "b": 77, "c": 4001, "d": 1}
    mixture = Mixture([counting(*each) for each in sizes.items()], [Stage(sizes)], seed=3)
    assert mixture.num_bins == sum(sizes.values())
    for epoch in range(3):
        bins = mixture.epoch(epoch).bins(np.arange(mixture.num_bins))
        came = sorted(zip(bins.dataset_ids.tolist(), bins.ids.tolist(), strict=True))
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


@given(
    st.lists(st.tuples(st.integers(1, 400), st.tuples(*[st.integers(0, 5)] * 3)), max_size=4),
    st.integers(20, 150),
    SEEDS,
)
@settings(max_examples=80, deadline=None)
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
        assert parting(older.chain, mixture.chain) == position
        for cursor in (0, 1, position - 1, position):
            assert mixture.digest_at(cursor) == older.digest_at(cursor)
        assert mixture.digest_at(position + 1) != older.digest_at(position + 1)
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


def run_of(mixture, num_epochs):
    parts = [mixture.epoch(e).bins(np.arange(mixture.num_bins)) for e in range(num_epochs)]
    return [pair for bins in parts for pair in zip(bins.dataset_ids.tolist(), bins.ids.tolist(), strict=True)]


@pytest.mark.parametrize("when_out", ["repeat", "stop", "reweigh"])
def test_steps_of_one_component_are_as_exact(when_out):
    """Proportions hold in steps, and no bin comes twice where none is repeated."""
    parts = [counting("web", 1000), counting("code", 615)]
    mixture = Mixture(parts, [Stage({"web": 7, "code": 3})], seed=3, when_out=when_out, bins_per_draw=6)
    assert mixture.num_bins == 6 * (237 if when_out == "stop" else 166 + 102)
    for epoch in range(2):
        bins = mixture.epoch(epoch).bins(np.arange(mixture.num_bins))
        steps = bins.dataset_ids.reshape(-1, 6)
        assert (steps == steps[:, :1]).all()
        num = int((steps[:, 0] == 0).sum())
        assert num == 166 if when_out == "reweigh" else abs(num - 0.7 * len(steps)) < 1
        if when_out != "repeat":
            for d in range(2):
                ours = bins.ids[bins.dataset_ids == d].tolist()
                assert ours == parts[d].source_of(epoch).bins(np.arange(len(ours))).ids.tolist()
    found = mixture.epoch(0).locate([5])
    for dataset, position in zip(found.dataset_ids.tolist(), found.positions.tolist(), strict=True):
        if position >= 0:
            bins = mixture.epoch(0).bins([position])
            assert (bins.ids.tolist(), bins.dataset_ids.tolist()) == ([5], [dataset])


def test_draws_are_whole_and_part_of_the_digest():
    parts = [counting("web", 50), counting("code", 3)]
    plain, drawn = (Mixture(parts, [Stage({"web": 1})], seed=1, num_bins=40, bins_per_draw=n) for n in (1, 4))
    assert plain.chain != drawn.chain
    assert parting(drawn.chain, drawn.appended(Stage({"code": 1}), 48).chain) == 48
    with pytest.raises(ValueError, match=r"num_bins 42 is no multiple of 4, the bins in a row that .* take 40 or 44"):
        Mixture(parts, [Stage({"web": 1})], seed=1, num_bins=42, bins_per_draw=4)
    with pytest.raises(ValueError, match=r"until of stage 0, position 3 is no multiple of 4, .*: take 4"):
        drawn.appended(Stage({"web": 1}), 3)
    with pytest.raises(ValueError, match="code has fewer than the 4 bins in a row that are to be of one component"):
        Mixture(parts, [Stage({"web": 1, "code": 1})], seed=1, when_out="stop", bins_per_draw=4)


def test_a_new_component_is_appended():
    mixture = Mixture([counting("web", 50)], [Stage({"web": 1})], seed=1, num_bins=100)
    longer = mixture.appended(Stage({"web": 1, "code": 1}), 60, [counting("code", 30)])
    ours, theirs = run_of(longer, 1), run_of(mixture, 1)
    assert ours[:60] == theirs[:60]
    assert sum(d for d, _ in ours[60:]) == 20
    assert [i for d, i in ours if d == 0] == [i for _, i in theirs[:80]]


def test_stop_gives_no_bin_twice_in_an_epoch():
    parts = [counting("web", 70), counting("code", 50)]
    mixture = Mixture(parts, [Stage({"web": 7, "code": 3})], seed=1, when_out="stop")
    assert mixture.num_bins == 100
    for epoch in range(3):
        bins = mixture.epoch(epoch).bins(np.arange(100))
        assert np.bincount(bins.dataset_ids).tolist() == [70, 30]
        ours = bins.ids[bins.dataset_ids == 1]
        assert ours.tolist() == parts[1].source_of(epoch).bins(np.arange(30)).ids.tolist()
    with pytest.raises(ValueError, match="web has 70 bins and would give 84 in epoch 0 of the mixture: lower its"):
        Mixture(parts, [Stage({"web": 7, "code": 3})], seed=1, when_out="stop", num_bins=120)
    with pytest.raises(ValueError, match=r"code has 50 bins and would give \d+ in epoch 1 of the mixture"):
        mixture.appended(Stage({"code": 1}), 140)


@given(
    sizes=st.lists(st.integers(1, 900), min_size=1, max_size=5),
    weights=st.lists(st.sampled_from([1, 2, 7, "0.3", "1/7", "123/1000"]), min_size=5, max_size=5),
    most_epochs=st.lists(st.integers(1, 3), min_size=5, max_size=5),
    epoch=st.integers(0, 3),
    seed=SEEDS,
)
@settings(max_examples=100, deadline=None)
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
        assert bins.ids[bins.dataset_ids == d].tolist() == [i for ids in ours for i in ids]
        found = source.locate([0])
        assert (
            sorted(found.positions[found.dataset_ids == d].tolist())
            == np.flatnonzero((bins.dataset_ids == d) & (bins.ids == 0)).tolist()
        )
    block = mixture._shares[0].block
    for end in [*range(block, sum(due) - block + 1, block), sum(due)]:
        nums = np.bincount(bins.dataset_ids[:end], minlength=len(sizes)).tolist()
        for num, exactly in zip(nums, exactly_due(weights, due, end), strict=True):
            assert abs(num - exactly) < 1


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


def test_a_thousand_shards_run_out_one_by_one():
    parts = [counting(f"c{d}", 20 + d % 400) for d in range(1000)]
    mixture = Mixture(parts, [Stage({part.name: 1 for part in parts})], seed=1, when_out="reweigh")
    source = mixture.epoch(2)
    sizes = [part.num_bins for part in parts]
    assert source.num_bins == sum(sizes)
    assert np.bincount(dealt(mixture, 2)).tolist() == sizes


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
    assert mixture._begins(far) == [divmod(int(ours[0]), 7), divmod(int(ours[1]), 5)]
    assert len(mixture.epoch(far).bins([29])) == 1


def test_every_policy_keeps_the_datasets(epochs, topologies, bins_of):
    @given(mixed(leaves(epochs)), st.data())
    @settings(max_examples=50, deadline=None)
    def check(made, data):
        source = made.source_of(1)
        datasets_of = {}
        whole = source.bins(np.arange(source.num_bins))
        for dataset, (_, ids, _) in zip(whole.dataset_ids.tolist(), bins_of(whole), strict=True):
            for i in ids:
                datasets_of.setdefault(i, set()).add(dataset)
        topology = data.draw(topologies(source.num_bins, tuple(RemainderPolicy)))
        stream = Assignment(source, topology, seed=1, epoch=1)
        for rank in range(topology.world_size):
            bins = stream.bins(range(stream.num_steps), rank)
            assert len(bins.dataset_ids) == len(bins)
            for dataset, (_, ids, _) in zip(bins.dataset_ids.tolist(), bins_of(bins), strict=True):
                assert (dataset == -1) == (not ids)
                assert all(dataset in datasets_of[i] for i in ids)

    check()


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([], "needs at least one stage"),
        ([Stage({"web": 1}, until=5)], "the last stage goes on: leave out its until"),
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
