"""Groups under everything else that shapes a run: batch schedules, takedowns, mixtures, locality windows, balances.

The oracle writes an epoch out as lists: bins of groups' numbers, each group's members in its place, what is taken away
by file, and optimizer steps counted off one by one. What is served has to be those lists, and never part a group.
Broken sources show that the oracle can refuse.
"""

import itertools
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.flat_words import prepare
from tests.server.composed import Composition, windowed

from packhorse.client import Balance, RemainderPolicy, Skips, Topology, connect
from packhorse.client.streams.blocks import AS_IT_IS
from packhorse.dataset import Takedown, open_prepared
from packhorse.epoch import GroupedSource

MAX_SEQ_LEN = 8
"""What `scheduled` counts tokens of stages by."""


@dataclass(frozen=True)
class Part:
    """A dataset in locality windows, and its groups as lists of ids; ids that are no group's have none."""

    dataset: object
    groups: dict
    num_windows: int
    seed: int
    num_datasets = 1

    def lists(self, epoch):
        """(dataset, ids, groups) of every bin."""
        names = list(self.groups)
        expanded = [
            [(names[n], i) for n in of_bin for i in self.groups[names[n]]] if names else [(-1, i) for i in of_bin]
            for of_bin, _ in windowed(self.dataset, self.num_windows, self.seed, epoch)
        ]
        return [(0, [i for _, i in one], [group for group, _ in one]) for one in expanded]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Two grouped datasets and a plain one."""
    root = tmp_path_factory.mktemp("groups")
    random = np.random.default_rng(11)
    for name, most in (("pairs", 2), ("rollouts", 4), ("plain", 0)):
        sizes = random.integers(1, most + 1, 40) if most else np.ones(70, dtype=int)
        lengths = random.integers(1, MAX_SEQ_LEN // max(most, 2) + 1, int(sizes.sum()))
        ids = random.permutation(5 * len(lengths))[: len(lengths)]
        table = np.array(list(zip(lengths, ids, strict=True)), [("n", "i8"), ("id", "i8")])
        prepare(
            lengths=table,
            length_column="n",
            id_column="id",
            groups=np.repeat(random.permutation(len(sizes)) + 500, sizes) if most else None,
            max_seq_len=MAX_SEQ_LEN,
            output=root / name,
            progress=False,
        )
    return root


@pytest.fixture(scope="module")
def parts(root):
    """Name → (dataset, group → ids in order), read from the tables that `test_prepare_groups` proves."""
    found = {}
    for name in ("pairs", "rollouts", "plain"):
        dataset, groups = open_prepared(root / name), {}
        if dataset.groups is not None:
            begin = 0
            for group, end in dataset.groups.table.tolist():
                groups[group], begin = dataset.groups.members[begin:end, 0].tolist(), end
        found[name] = dataset, groups
    return found


def lists(made, parts, epoch, seed):
    """Every bin that is left, a list of (component, group, id, what is taken away of it)."""
    left = made.left(lambda name, *others: Part(*parts[name], *others), epoch, seed)
    return [[(c, group, i, taken) for i, group, taken in zip(*columns, strict=True)] for c, *columns in left]


@st.composite
def compositions(draw):
    names = ("rollouts", *draw(st.sampled_from([(), ("plain",), ("pairs",), ("plain", "pairs")])))
    num_bins = draw(st.integers(6, 50))
    weights = st.tuples(*[st.integers(1, 9)] * len(names))
    until = draw(st.none() | st.integers(1, 90))
    pair = st.tuples(st.integers(0, num_bins - 3), st.integers(1, 2)).map(lambda p: (p[0], p[0] + p[1]))
    skipped = tuple((epoch, (draw(pair),)) for epoch in range(2) if draw(st.booleans()))
    redaction = st.tuples(
        st.sampled_from(names), st.sets(st.integers(0, 500), min_size=1).map(sorted), st.none() | st.integers(0, 9)
    )
    return Composition(
        names=names,
        num_windows=tuple(draw(st.sampled_from([1, 3])) for _ in names),
        stages=tuple((draw(weights), each) for each in ([until, None] if until else [None])),
        num_bins=num_bins,
        skipped=skipped,
        redactions=tuple(draw(st.lists(redaction, max_size=2))),
    )


def bins_of(block):
    """Each bin as its position and a list of (component, group, id, what is taken away of it)."""
    datasets = block.component_of_sequences().tolist()
    groups = [-1] * len(block.ids) if block.group_ids is None else block.group_ids.tolist()
    taken = [AS_IT_IS] * len(block.ids) if block.redactions is None else block.redactions.tolist()
    rows = list(zip(datasets, groups, block.ids.tolist(), taken, strict=True))
    ends = block.bin_ends.tolist()
    return [(p, rows[a:b]) for p, a, b in zip(block.positions.tolist(), [0, *ends], ends, strict=False)]


def steps_counted_off(num_bins, topology, stages, epoch):
    """(first position of the optimizer step, its size, first position of the step) of every step."""
    position, steps = topology.start_position, []
    while position < num_bins:
        size = [size for begin, size in stages if begin <= epoch * num_bins + position][-1]
        share = size // topology.accumulation
        steps += [(position, size, first) for first in range(position, min(position + size, num_bins), share)]
        position += size
    return steps


def check_streams(root, parts, made, *, epoch, seed, topology, stages):
    """Asserts that the streams of all ranks and workers together are the oracle's lists.

    Args:
        root: where datasets are; gets the composition's files.
        parts: the datasets as lists.
        made: the composition.
        epoch: which one is streamed.
        seed: of the run.
        topology: with a schedule, and a last step that loses and repeats nothing.
        stages: the schedule, (position of the run, global batch size).
    """
    name, expected = made.write(root), lists(made, parts, epoch, seed)
    steps = steps_counted_off(len(expected), topology, stages, epoch)
    came = {}
    with connect(f"embedded:{root}") as client:
        for rank, worker in itertools.product(range(topology.world_size), range(topology.workers_per_rank)):
            run = {"epoch": epoch, "seed": seed, "topology": topology, "rank": rank, "worker": worker}
            with client.stream_bins(name, **run) as stream:
                assert stream.header.num_steps == len(steps)
                for block in stream:
                    bins = iter(bins_of(block))
                    for step in block.steps:
                        share = steps[step][1] // topology.accumulation // topology.world_size
                        came[step, rank] = list(itertools.islice(bins, share))
                    assert next(bins, None) is None
    assert came.keys() == set(itertools.product(range(len(steps)), range(topology.world_size)))

    every = [rows for batch in came.values() for _, rows in batch]
    left = expected[topology.start_position :]
    assert Counter(row for rows in every for row in rows) == Counter(row for rows in left for row in rows)
    for rows in every:  # never parted, whatever the last step does with bins
        for (component, group), run_of in itertools.groupby(rows, lambda row: row[:2]):
            members = [i for _, _, i, _ in run_of]
            assert group == -1 or members == parts[made.names[component]][1][group]
    if topology.remainder is RemainderPolicy.EMPTY:
        assert sorted(filter(None, every)) == sorted(left)

    for first, size in dict.fromkeys(step[:2] for step in steps):
        if first + size > len(expected):
            continue  # the epoch's last, partial one
        of_window = {
            (number, rank): came[number, rank]
            for number, step in enumerate(steps)
            if step[0] == first
            for rank in range(topology.world_size)
        }
        bins = [one for _, batch in sorted(of_window.items()) for one in batch]
        in_order = list(enumerate(expected))[first : first + size]
        assert (sorted(bins) if topology.balance is not Balance.NONE else bins) == in_order


def test_schedules_takedowns_and_groups_together(root, parts, scheduled):
    @given(compositions(), st.integers(0, 1), st.integers(0, 2**64 - 1), st.data())
    @settings(max_examples=25)
    def check(made, epoch, seed, data):
        policies = (RemainderPolicy.SPREAD, RemainderPolicy.EMPTY)
        num_bins = len(lists(made, parts, epoch, seed))
        topology, stages = data.draw(scheduled(num_bins, epochs=2, policies=policies))
        check_streams(root, parts, made, epoch=epoch, seed=seed, topology=topology, stages=stages)

    check()


def pairs_of_members(bins):
    """Where two members of a group stand next to each other: the first one's index."""
    own = bins.group_ids
    return np.setdiff1d(np.flatnonzero((own[1:] == own[:-1]) & (own[1:] >= 0)), bins.bin_ends - 1)


def with_sequences(bins, which, grown_by):
    """The bins with other sequences: indices of those that there were, and by how much the bin of one grows."""
    arrays = {name: getattr(bins, name)[which] for name in ("ids", "lengths", "group_ids")}
    return replace(bins, bin_ends=bins.bin_ends + grown_by, **arrays)


def swap_two_members(bins, at):
    order = np.arange(len(bins.ids))
    order[[at, at + 1]] = at + 1, at
    return with_sequences(bins, order, 0)


def leave_a_member_out(bins, at):
    return with_sequences(bins, np.delete(np.arange(len(bins.ids)), at), -(bins.bin_ends > at).astype(int))


def double_a_member(bins, at):
    return with_sequences(bins, np.insert(np.arange(len(bins.ids)), at, at), (bins.bin_ends > at).astype(int))


def give_a_member_to_another_group(bins, at):
    group_ids = bins.group_ids.copy()
    group_ids[at + 1] += 1
    return replace(bins, group_ids=group_ids)


def part_a_group(bins, at):
    """Its last members go to the next bin."""
    number = int(np.searchsorted(bins.bin_ends, at, side="right"))
    if number == len(bins) - 1:
        return bins
    ends = bins.bin_ends.copy()
    ends[number] = at + 1
    return replace(bins, bin_ends=ends)


def exchange_two_bins(bins, _at):
    order = np.arange(len(bins))
    order[:2] = order[:2][::-1]
    return replace(bins.take(order), positions=bins.positions)


@pytest.fixture
def check_one(root, parts):
    """Function: checks one composition, in which stages, windows, takedown and schedule all matter."""
    made = Composition(
        names=("rollouts", "plain"),
        num_windows=(3, 1),
        stages=(((3, 1), 30), ((1, 1), None)),
        num_bins=44,
        skipped=((0, ((5, 7),)), (1, ((9, 11),))),
        redactions=(("rollouts", list(range(0, 500, 2)), None), ("plain", list(range(0, 350, 3)), 7)),
    )
    schedule = [(0, 6), (42, 12)]
    topology = Topology(
        world_size=3, workers_per_rank=2, batch_schedule=" ".join(f"{a}:{b}" for a, b in schedule), accumulation=2
    )

    def check(balance, stages=schedule):
        shape = replace(topology, balance=balance)
        for epoch in range(2):
            check_streams(root, parts, made, epoch=epoch, seed=3, topology=shape, stages=stages)

    return check


@pytest.mark.parametrize("balance", [Balance.NONE, Balance.OPTIMIZER_STEP])
def test_the_oracle_takes_what_is_whole(check_one, balance):
    check_one(balance)


@pytest.mark.parametrize("balance", [Balance.NONE, Balance.OPTIMIZER_STEP])
@pytest.mark.parametrize(
    "fault",
    [
        swap_two_members,
        leave_a_member_out,
        double_a_member,
        give_a_member_to_another_group,
        part_a_group,
        exchange_two_bins,
    ],
)
def test_the_oracle_refuses_groups_that_are_not_whole(check_one, fault, balance, monkeypatch):
    whole = GroupedSource.bins

    def broken(self, positions):
        bins = whole(self, positions)
        pairs = pairs_of_members(bins)
        return fault(bins, int(pairs[len(pairs) // 2])) if len(pairs) and len(bins) > 1 else bins

    monkeypatch.setattr(GroupedSource, "bins", broken)
    with pytest.raises(AssertionError):
        check_one(balance)


@pytest.mark.parametrize(
    ("name", "nothing"), [("redacted", lambda *_, **__: None), ("skips_of", lambda *_: Skips.of([]))]
)
def test_the_oracle_refuses_streams_without_the_takedown(check_one, name, nothing, monkeypatch):
    monkeypatch.setattr(Takedown, name, nothing)
    with pytest.raises(AssertionError):
        check_one(Balance.NONE)


@pytest.mark.parametrize("stages", [[(0, 6)], [(0, 12)], [(0, 6), (36, 12)], [(0, 6), (48, 12)]])
def test_the_oracle_refuses_the_steps_of_another_schedule(check_one, stages):
    with pytest.raises(AssertionError):
        check_one(Balance.NONE, stages)


def test_a_takedown_ahead_of_a_cursor_keeps_the_steps_before_it(root):
    """The run goes on in the same stage of its schedule, with the bins that are left."""
    made = Composition(names=("rollouts", "plain"), num_windows=(3, 1), stages=(((2, 1), None),), num_bins=44)
    name = made.write(root)

    def bins(client, start=0, digest=""):
        topology = Topology(world_size=2, batch_schedule="0:4 20:8", start_position=start, remainder="drop")
        run = {"seed": 5, "topology": topology, "expected_digest": digest}
        streams = [client.stream_bins(name, rank=rank, **run) for rank in range(2)]
        came = [rows for stream in streams for block in stream for rows in bins_of(block)]
        return [rows for _, rows in sorted(came)], streams[0].header

    with connect(f"embedded:{root}") as client:
        before, header = bins(client)
        replace(made, skipped=((0, ((24, 28),)),)).write_takedown(root, name)
        after, now = bins(client, 20, header.digest)
    assert (header.num_bins, now.num_bins, len(before), len(after)) == (44, 40, 44, 16)
    assert after == [*before[20:24], *before[28:40]]
