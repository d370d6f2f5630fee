"""What runs until kernels are compiled: the same bins, against lists built position by position and against kernels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.epoch.test_compositions import check_against_lists, leaves, mixed
from tests.plain_kernels import names_of_plain_kernels, plain_kernels

from packhorse.epoch import (
    Assignment,
    Component,
    EpochView,
    GroupedSource,
    Groups,
    JoinedSource,
    Mixture,
    Permutation,
    Stage,
    WindowedView,
)
from packhorse.packing.split import split_to_multiple
from packhorse.topology import Balance, RemainderPolicy, RoomRule, Topology

RAN = set()
"""Kernels that ran in their plain form, in any test of this file."""


@pytest.fixture(scope="module", autouse=True)
def every_plain_form_runs(request):
    """No plain form is left out by the tests of this file together; where some are left out, it is not asked."""
    failed = request.session.testsfailed
    yield
    ran = {item.originalname for item in request.session.items if item.module is request.module}
    if request.session.testsfailed == failed and ran == {name for name in globals() if name.startswith("test_")}:
        assert names_of_plain_kernels() <= RAN, sorted(names_of_plain_kernels() - RAN)


def both(make):
    """What a function returns with compiled kernels, after it is compared with what it returns with plain ones."""
    compiled = make()
    with plain_kernels() as ran:
        plain = make()
    RAN.update(ran)
    assert ran
    assert len(compiled) == len(plain)
    for one, other in zip(compiled, plain, strict=True):
        assert np.array_equal(one, other)
        assert getattr(one, "dtype", None) == getattr(other, "dtype", None)
    return compiled


def columns(bins):
    names = ("ids", "lengths", "bin_ends", "positions", "templates", "first_tokens", "groups", "component_ids")
    return [column for name in names if (column := getattr(bins, name, None)) is not None]


def places(found):
    return [found.ids, found.first_tokens, found.lengths, found.positions, found.index_in_bin]


def test_plain_compositions_follow_the_lists(epochs, bins_of):
    """Mixtures of windows, skips and joined bins: no kernel is asked."""

    @given(mixed(leaves(epochs), most_bins=30), st.integers(0, 3), st.data())
    @settings(max_examples=25)
    def check(made, epoch, data):
        with plain_kernels() as ran:
            check_against_lists(made, epoch, bins_of, data)
        RAN.update(ran)

    check()


def test_plain_permutations_equal_the_twin(twin):
    for size in (1, 2, 15, 16, 17, 1000, 4095, 4096, 4097, 2**31 + 11, 2**62):
        values = np.unique(np.arange(20) * (size - 1) // 19 if size < 2**40 else np.arange(20) * (size // 20))
        oracle = twin(size, 7, 5)
        with plain_kernels() as ran:
            permutation = Permutation(size, 7, 5)
            image = permutation.forward(values)
            assert image.tolist() == [oracle(x) for x in values.tolist()]
            assert permutation.backward(image).tolist() == values.tolist()
        RAN.update(ran)


def test_views_windows_pieces_and_wide_plans(epochs):
    @given(epochs, st.integers(1, 5), st.booleans(), st.booleans(), st.randoms(use_true_random=False))
    @settings(max_examples=25)
    def check(made, num_windows, has_pieces, is_wide, random):
        small, seed, epoch = made
        plan = small.plan.widened() if is_wide else small.plan
        begins = np.arange(len(small.pool), dtype=np.uint32) * 3 if has_pieces else None
        positions = [random.randrange(plan.num_bins) for _ in range(9)]
        wanted = np.array([*random.choices(small.pool.tolist(), k=5), -1, 2**40])

        def make():
            given = {"seed": seed, "epoch": epoch, "first_tokens": begins}
            view = EpochView(plan, small.pool, wide=is_wide, **given)
            windowed = WindowedView(plan, small.pool, num_windows=num_windows, **given)
            return [
                column
                for source in (view, windowed, JoinedSource(view, 2))
                for column in (
                    *columns(source.bins([p for p in positions if p < source.num_bins])),
                    source.costs(range(source.num_bins), 3),
                    *places(source.locate(wanted)),
                )
            ]

        both(make)

    check()


@pytest.mark.parametrize("balance", list(Balance))
@pytest.mark.parametrize("remainder", list(RemainderPolicy))
def test_every_step_of_every_rank(prepared, balance, remainder):
    """Accumulation, a last partial step, and a mixture, for two ranks."""
    small = prepared({40: 31, 25: 40, 9: 77, 3: 60}, 64)
    topology = Topology(world_size=2, batch_size=4, accumulation=2, remainder=remainder, balance=balance)

    def make():
        view = small.view(3, 1)
        parts = [Component.of(name, lambda epoch: small.view(3, epoch)) for name in ("a", "b", "c")]
        mixture = Mixture(parts, [Stage({"a": 5, "b": 2, "c": 1})], seed=9).epoch(0)
        made = []
        for source in (view, mixture):
            assignment = Assignment(source, topology, seed=5, epoch=1)
            made += [c for rank in range(2) for c in columns(assignment.bins(range(assignment.num_steps), rank))]
        return made

    both(make)


def test_groups(prepared):
    small = prepared({2: 6, 3: 4}, 8)
    members = np.stack((np.arange(24), 1 + np.arange(24) % 3), axis=1).astype(np.int64)
    table = np.stack((np.arange(100, 110), np.cumsum([2, 3, 2, 2, 3, 2, 3, 2, 2, 3])), axis=1).astype(np.int64)
    groups = Groups(table=table, members=members, rooms=RoomRule(8), max_sequences_per_bin=24)

    def make():
        view = EpochView(small.plan, np.arange(10, dtype=np.uint32), seed=1, epoch=0)
        source = GroupedSource(view, groups)
        return [*columns(source.bins(range(source.num_bins))), *places(source.locate(np.arange(25)))]

    both(make)


def test_split_bins():
    lengths = np.array([9, 8, 5, 5, 4, 2, 1, 1])
    both(lambda: split_to_multiple(np.arange(8), np.array([3, 8]), lengths, 5))
