"""Balanced streams over the wire: every sequence once, every optimizer step the same bins, in whatever order."""

import itertools
from collections import Counter
from dataclasses import replace

import pytest

from packhorse.topology import Balance, RemainderPolicy, Skips, Topology

BALANCES = [balance for balance in Balance if balance is not Balance.NONE]
SHAPE = Topology(world_size=3, workers_per_rank=2, batch_size=4, accumulation=3, start_position=11)
EPOCH = {"seed": 9, "epoch": 4}
SKIP = Skips.parse(["5:9,100:131"])


@pytest.fixture
def delivered_by(bins_of_stream):
    """Function: (rank, worker) → the bins of that stream, and the header of all."""

    def read(client, topology, **options):
        found = {}
        for rank, worker in itertools.product(range(topology.world_size), range(topology.workers_per_rank)):
            stream = client.stream_bins("rows", rank=rank, worker=worker, topology=topology, **EPOCH, **options)
            found[rank, worker] = bins_of_stream(stream, topology.batch_size, topology.workers_per_rank)
        return found, stream.header

    return read


def steps_of(delivered, num_steps):
    """Step → rank → its bins."""
    steps = [{} for _ in range(num_steps)]
    for (rank, _), bins in delivered.items():
        for one in bins:
            steps[one.step].setdefault(rank, []).append(one)
    return steps


def windows_of(steps, topology):
    """Window → the bins of all its steps and ranks, in no order."""
    return [
        Counter(
            (one.position, one.ids)
            for ranks in steps[first : first + topology.accumulation]
            for one in itertools.chain(*ranks.values())
        )
        for first in range(0, len(steps), topology.accumulation)
    ]


def cost(bins, topology):
    return sum(topology.cost_linear * n + n * n for one in bins for n in one.lengths)


def longest_waits(steps, topology):
    """What all ranks together wait for the slowest, in cost, by the balance's own measure."""
    together = topology.accumulation if topology.balance is Balance.OPTIMIZER_STEP else 1
    sums = [
        [
            sum(cost(ranks[rank], topology) for ranks in steps[first : first + together])
            for rank in range(topology.world_size)
        ]
        for first in range(0, len(steps), together)
    ]
    return sum(max(each) - min(each) for each in sums)


@pytest.mark.parametrize("skip", [Skips(), SKIP], ids=str)
@pytest.mark.parametrize("remainder", list(RemainderPolicy))
@pytest.mark.parametrize("balance", BALANCES)
def test_balanced_ranks_share_every_window(client, embedded, corpus, delivered_by, balance, remainder, skip):
    topology = replace(SHAPE, balance=balance, remainder=remainder)
    balanced, header = delivered_by(client, topology, skip=skip)
    assert (balanced, header) == delivered_by(embedded, topology, skip=skip)
    plain, plain_header = delivered_by(client, replace(topology, balance="none"), skip=skip)
    assert header == plain_header
    assert balanced != plain
    steps, plain_steps = steps_of(balanced, header.num_steps), steps_of(plain, header.num_steps)
    assert all(len(bins) == topology.batch_size for ranks in steps for bins in ranks.values())
    assert all(len(ranks) == topology.world_size for ranks in steps)
    assert windows_of(steps, topology) == windows_of(plain_steps, topology)
    whole_windows = (len(steps) - 1) // topology.accumulation * topology.accumulation  # a last step may be uneven
    waits, plain_waits = (longest_waits(some[:whole_windows], topology) for some in (steps, plain_steps))
    assert waits < 0.3 * plain_waits

    came = Counter(
        i
        for bins in balanced.values()
        for one in bins
        for i in one.ids
        if one.position >= 0 or remainder is not RemainderPolicy.REPEAT
    )
    num_bins = client.get_dataset("rows").num_bins
    assert header.num_bins == num_bins - skip.num_skipped
    last = header.num_bins - header.num_bins_dropped
    assert (header.num_bins_dropped > 0) == (remainder is RemainderPolicy.DROP)
    positions = [*range(topology.start_position), *range(last, header.num_bins)]
    left_out = client.get_bins("rows", positions=positions, skip=skip, **EPOCH).ids.tolist()
    skipped = [position for each in skip.ranges for position in range(*each)]
    left_out += client.get_bins("rows", positions=skipped, **EPOCH).ids.tolist()
    assert came + Counter(left_out) == Counter(corpus.ids["rows"].tolist())


@pytest.mark.parametrize("balance", BALANCES)
def test_tcp_and_embedded_give_the_same_bytes(client, embedded, joined, balance):
    for remainder, rank in itertools.product(RemainderPolicy, range(SHAPE.world_size)):
        topology = replace(SHAPE, balance=balance, remainder=remainder)
        streams = [
            c.stream_bins("rows", rank=rank, worker=1, topology=topology, skip=SKIP, **EPOCH)
            for c in (client, embedded)
        ]
        blocks = [list(stream) for stream in streams]
        assert streams[0].header == streams[1].header
        assert joined(blocks[0]) == joined(blocks[1])
        assert [block.steps for block in blocks[0]] == [block.steps for block in blocks[1]]


@pytest.mark.parametrize("balance", BALANCES)
def test_one_worker_or_many_get_the_same(client, delivered_by, balance):
    topology = replace(SHAPE, balance=balance)
    many, header = delivered_by(client, topology)
    one, _ = delivered_by(client, replace(topology, workers_per_rank=1))
    assert steps_of(many, header.num_steps) == steps_of(one, header.num_steps)


@pytest.mark.parametrize("balance", BALANCES)
def test_first_step_leaves_out_what_came_before(client, bins_of_stream, balance):
    """Within a window too: that is how a broken stream goes on."""
    topology = replace(SHAPE, balance=balance, workers_per_rank=1)
    arguments = {"rank": 2, "topology": topology, **EPOCH}
    whole = bins_of_stream(client.stream_bins("rows", **arguments), topology.batch_size)
    last = whole[-1].step
    for first_step in (1, 2, 3, 4, last - 1, last, last + 1):
        rest = client.stream_bins("rows", first_step=first_step, **arguments)
        assert bins_of_stream(rest, topology.batch_size) == [one for one in whole if one.step >= first_step]


@pytest.mark.parametrize("balance", BALANCES)
def test_a_window_s_end_is_a_position_to_resume_at_under_any_topology(client, delivered_by, corpus, balance):
    topology = replace(SHAPE, balance=balance, start_position=0)
    delivered, header = delivered_by(client, topology)
    for last_step in range(topology.accumulation - 1, header.num_steps, 4 * topology.accumulation):
        position = topology.position_after(last_step, header.num_bins)
        assert position == (last_step + 1) * topology.bins_per_step
        came = Counter(i for bins in delivered.values() for one in bins if one.step <= last_step for i in one.ids)
        other = Topology(world_size=2, batch_size=5, accumulation=2, balance="micro-step", start_position=position)
        rest, _ = delivered_by(client, other)
        came.update(i for bins in rest.values() for one in bins for i in one.ids)
        assert came == Counter(corpus.ids["rows"].tolist())


@pytest.mark.parametrize("skip", [Skips(), SKIP], ids=str)
@pytest.mark.parametrize("remainder", list(RemainderPolicy))
@pytest.mark.parametrize("balance", BALANCES)
def test_locate_agrees_with_the_streams(client, embedded, corpus, delivered_by, balance, remainder, skip):
    topology = replace(SHAPE, balance=balance, remainder=remainder)
    ids = corpus.ids["rows"].tolist()
    locations = client.locate("rows", ids=ids, topology=topology, skip=skip, **EPOCH)
    assert locations == embedded.locate("rows", ids=ids, topology=topology, skip=skip, **EPOCH)
    delivered, header = delivered_by(client, topology, skip=skip)
    where = {
        i: (one.step, rank, worker, one.slot)
        for (rank, worker), bins in delivered.items()
        for one in bins
        for i in one.ids
        if one.position >= 0 or remainder is not RemainderPolicy.REPEAT
    }
    for location in locations:
        place = (location.step, location.rank, location.worker, location.slot)
        assert place == where.get(location.id, (None,) * 4)
    num_left_out = sum(location.step is None for location in locations)
    assert num_left_out == len(ids) - len(where)
    by_position = client.get_bins("rows", positions=range(header.num_bins), skip=skip, **EPOCH)
    bins = [one.tolist() for one, _ in by_position.bins()]
    assert sum(location.position < 0 for location in locations) == len(ids) - len(by_position.ids)
    for location in locations:
        if location.position >= 0:
            assert bins[location.position][location.index_in_bin] == location.id
