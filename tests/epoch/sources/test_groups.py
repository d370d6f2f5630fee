"""Groups: the epoch of their members is the epoch of the groups, written out as lists; nothing ever parts a group."""

from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.epoch import (
    Assignment,
    Component,
    EpochView,
    GroupedSource,
    Groups,
    Mixture,
    PlanIndex,
    SkipSource,
    Stage,
    WindowedView,
)
from packhorse.packing import pack_histogram
from packhorse.topology import RemainderPolicy, RoomRule, Skips

MAX_SEQ_LEN = 32


@dataclass(frozen=True)
class Drawn:
    """Groups as lists of (id, length), with the plan over them."""

    members: list
    group_ids: list
    rule: RoomRule
    plan: PlanIndex
    pool: np.ndarray

    def table(self):
        every = [member for group in self.members for member in group]
        ids = [number for number, _ in every]
        ascend = all(a < b for a, b in pairwise(ids))
        return Groups(
            table=np.array(list(zip(self.group_ids, accumulate(map(len, self.members)), strict=True))),
            members=np.array(every),
            rooms=self.rule,
            max_sequences_per_bin=len(every),
            order=None if ascend else np.argsort(ids),
        )

    def packed(self, seed, epoch, num_windows=1):
        if num_windows == 1:
            return EpochView(self.plan, self.pool, seed=seed, epoch=epoch)
        return WindowedView(self.plan, self.pool, seed=seed, epoch=epoch, num_windows=num_windows)

    def expanded(self, packed):
        """Every bin of an epoch over groups as a list of (group id, id, room)."""
        bins = packed.bins(np.arange(packed.num_bins))
        parts = np.split(bins.ids.astype(int), bins.bin_ends[:-1])
        return [
            [(self.group_ids[g], i, self.rule.room(n)) for g in part.tolist() for i, n in self.members[g]]
            for part in parts
        ]


@st.composite
def drawn_groups(draw):
    rule = RoomRule(MAX_SEQ_LEN, draw(st.sampled_from([1, 4])), draw(st.sampled_from([0, 1])))
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=30))
    num = sum(sizes)
    ids = list(range(num)) if draw(st.booleans()) else draw(st.permutations(range(0, 3 * num, 3)))
    lengths = iter([(i, draw(st.integers(1, 7))) for i in ids])
    members = [[next(lengths) for _ in range(size)] for size in sizes]
    rooms = [sum(rule.room(n) for _, n in group) for group in members]
    counts = {room: rooms.count(room) for room in rooms}
    plan = pack_histogram(counts, MAX_SEQ_LEN)
    return Drawn(
        members=members,
        group_ids=draw(st.permutations(range(100, 100 + len(sizes)))),
        rule=rule,
        plan=PlanIndex.build(plan.templates, counts, MAX_SEQ_LEN),
        pool=np.array(sorted(range(len(sizes)), key=lambda g: (rooms[g], g)), dtype=np.uint32),
    )


def as_lists(bins):
    """Bins as lists of (group id, id, room)."""
    rows = list(zip(bins.group_ids.tolist(), bins.ids.tolist(), bins.lengths.tolist(), strict=True))
    ends = bins.bin_ends.tolist()
    return [rows[a:b] for a, b in zip([0, *ends], ends, strict=False)]


SEEDS = st.integers(0, 2**64 - 1)


def test_members_come_as_the_oracle_of_lists_says():
    @given(drawn_groups(), SEEDS, st.integers(0, 3), st.sampled_from([1, 3]))
    @settings(max_examples=60)
    def check(drawn, seed, epoch, num_windows):
        packed = drawn.packed(seed, epoch, num_windows)
        source, expected = GroupedSource(packed, drawn.table()), drawn.expanded(packed)
        every = np.arange(source.num_bins)
        found = source.bins(every)
        assert as_lists(found) == expected
        assert found.positions.tolist() == every.tolist()
        assert as_lists(source.bins(every[::-1])) == expected[::-1]
        assert source.costs(every, 7).tolist() == [sum(7 * n + n * n for _, _, n in one) for one in expected]
        places = {i: (p, j, n) for p, one in enumerate(expected) for j, (_, i, n) in enumerate(one)}
        wanted = [*places, 10**9, -5]
        located = source.locate(wanted)
        rows = zip(located.positions.tolist(), located.index_in_bin.tolist(), located.lengths.tolist(), strict=True)
        assert list(rows) == [places.get(i, (-1, -1, -1)) for i in wanted]
        assert located.ids.tolist() == wanted

    check()


def test_every_topology_and_balance_keeps_groups_whole(topologies):
    @given(drawn_groups(), SEEDS, st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), max_size=2), st.data())
    @settings(max_examples=80)
    def check(drawn, seed, ranges, data):
        whole = GroupedSource(drawn.packed(seed, 0), drawn.table())
        source = SkipSource(whole, Skips.of([(first, first + size) for first, size in ranges]))
        topology = data.draw(topologies(source.num_bins, (RemainderPolicy.SPREAD, RemainderPolicy.EMPTY)))
        assignment = Assignment(source, topology, seed=seed, epoch=0)
        of_ranks = [assignment.bins(range(assignment.num_steps), rank) for rank in range(topology.world_size)]
        groups = dict(zip(drawn.group_ids, drawn.members, strict=True))
        streamed = []
        for bins in of_ranks:
            for one in as_lists(bins):
                assert sum(n for _, _, n in one) <= MAX_SEQ_LEN
                for number, members in groupby(one, key=lambda row: row[0]):
                    rows = list(members)
                    assert [i for _, i, _ in rows] == [i for i, _ in groups[number]]  # whole, in order
                    streamed.append(number)
        left = source.bins(np.arange(topology.start_position, source.num_bins)).group_ids.tolist()
        assert sorted(streamed) == sorted(set(left))
        located = source.locate(source.bins(np.arange(source.num_bins)).ids)
        places = assignment.locate(located.positions, located.index_in_bin)
        for number, step, rank, slot, index in zip(
            located.ids.tolist(), places.steps, places.ranks, places.slots, places.index_in_bin, strict=True
        ):
            if step >= 0:
                bins = assignment.bins(range(step, step + 1), int(rank)).take(np.array([slot]))
                assert bins.ids[index] == number

    check()


@pytest.mark.parametrize("when", [0, 1])
def test_groups_mix_with_datasets_that_have_none(prepared, when):
    plain = prepared({3: 5, 4: 4}, MAX_SEQ_LEN)
    rule = RoomRule(MAX_SEQ_LEN)
    counts = {10: 3}
    plan = PlanIndex.build(pack_histogram(counts, MAX_SEQ_LEN).templates, counts, MAX_SEQ_LEN)
    table = Groups(
        table=np.array([[8, 2], [6, 4], [7, 6]]),
        members=np.array([[0, 4], [1, 6], [2, 5], [3, 5], [4, 1], [5, 9]]),
        rooms=rule,
        max_sequences_per_bin=6,
    )
    parts = [
        Component.of("pairs", lambda epoch: GroupedSource(EpochView(plan, np.arange(3), seed=1, epoch=epoch), table)),
        Component.of("plain", lambda epoch: plain.view(1, epoch)),
    ]
    epoch = Mixture(parts, [Stage({"pairs": 1, "plain": 2})], seed=4, num_bins=9).epoch(when)
    bins = epoch.bins(np.arange(epoch.num_bins))
    of_sequences = bins.component_ids.repeat(bins.sizes())
    assert (bins.group_ids[of_sequences == 1] == -1).all()
    assert set(bins.group_ids[of_sequences == 0].tolist()) == {6, 7, 8}
    ends = bins.items()
    assert len(ends) - 1 == (of_sequences == 1).sum() + (of_sequences == 0).sum() // 2
