"""Streams as they are asked for: what those of one run have in common is found once, and nothing else is."""

import gc
import weakref
from dataclasses import dataclass, field, replace

import pytest
from tests.server.mixtures import make_root

import packhorse.server.datasets.taken_away.takedowns
from packhorse.client.transport.requests import topology_message
from packhorse.server.base.faults import ServiceError
from packhorse.server.datasets.lazy_catalog import LazyCatalog
from packhorse.server.datasets.mixtures import Mixtures
from packhorse.server.methods import stream_request as stream_request
from packhorse.server.methods.epochs import MOST_BYTES, Epochs
from packhorse.server.methods.stream_request import StreamRequest
from packhorse.topology import StreamMode, Topology
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import WIRE_VERSION, header_checksum

TOPOLOGY = Topology(world_size=4, workers_per_rank=2, batch_size=2)


@pytest.fixture
def root(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(packhorse.server.datasets.taken_away.takedowns, "FRESH_SECONDS", 0)
    return make_root(corpus, tmp_path / "root")


@pytest.fixture
def ask(root, monkeypatch):
    """Asks for a stream; `ask.made` lists the runs that were looked at."""
    catalog, epochs, made = Mixtures(LazyCatalog(root, set())), Epochs(), []
    find = stream_request._Run.of
    monkeypatch.setattr(
        stream_request._Run, "of", lambda request, *more: (made.append(request), find(request, *more))[1]
    )

    def ask(topology=TOPOLOGY, **fields):
        message = topology_message(topology)
        request = pb.StreamBinsRequest(
            **{"dataset": "rows", "seed": 7, "wire_version": WIRE_VERSION} | fields, topology=message
        )
        asked = StreamRequest.of(request, catalog, epochs)
        assert asked.header.checksum == header_checksum(request, asked.header)
        return asked

    ask.made = made
    return ask


@pytest.mark.parametrize("name", ["rows", "staged"])
def test_ranks_and_workers_of_a_run_share_all_but_what_is_theirs(ask, name):
    asked = [ask(dataset=name, rank=rank, worker=worker) for rank in range(4) for worker in range(2)]
    ask(dataset=name, rank=1, first_step=3, expected_digest=asked[0].header.digest)
    assert len(ask.made) == 1
    assert len({each.header.checksum for each in asked}) == len(asked)
    for each in asked:
        each.header.ClearField("checksum")
        assert each.header == asked[0].header
    assert [(each.rank, each.steps.start) for each in asked] == [(rank, w) for rank in range(4) for w in range(2)]


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 8},
        {"epoch": 1},
        {"dataset": "named"},
        {"skip": [pb.PositionRange(first=1, end=2)]},
        {"topology": replace(TOPOLOGY, batch_size=1)},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_another_run_is_looked_at_by_itself(ask, other):
    assert ask().header.checksum != ask(**other).header.checksum
    assert len(ask.made) == 2


def test_what_is_taken_away_meanwhile_counts_at_once(ask, root):
    before = ask()
    (root / "rows.takedown.toml").write_text('[[skip]]\npositions = "2:5"\n')
    assert ask().header.num_bins == before.header.num_bins - 3


def test_streams_with_an_epoch_of_their_own_are_looked_at_one_by_one(ask):
    topology = replace(TOPOLOGY, mode=StreamMode.INDEPENDENT)
    first, second = ask(topology, rank=0), ask(topology, rank=1)
    assert len(ask.made) == 2
    assert first.assignment.bins(range(4), 0).ids.tolist() != second.assignment.bins(range(4), 0).ids.tolist()


@pytest.mark.parametrize(("field", "value"), [("rank", 4), ("worker", 2)])
def test_who_is_not_of_the_run_is_refused_also_where_it_is_known(ask, field, value):
    ask()
    with pytest.raises(ServiceError, match=field):
        ask(**{field: value})


@dataclass(eq=False)
class Epoch:
    """Takes a quarter of what there is room for."""

    num_bytes: int = MOST_BYTES // 4


@dataclass(eq=False)
class Dataset:
    """Counts the epochs that it makes."""

    made: list[int] = field(default_factory=list)

    def epoch(self, number: int, seed: int) -> Epoch:
        self.made.append(number)
        return Epoch()


def test_the_epochs_used_last_are_kept_within_the_bound():
    epochs, dataset = Epochs(), Dataset()
    for number in (0, 1, 2):
        epochs.whole(dataset, 7, number)
    assert epochs.whole(dataset, 7, 0) is epochs.whole(dataset, 7, 0)
    epochs.whole(dataset, 7, 3)  # and 1, which was used longest ago, goes
    for number in (0, 2, 3):
        epochs.whole(dataset, 7, number)
    assert dataset.made == [0, 1, 2, 3]
    epochs.whole(dataset, 7, 1)
    assert dataset.made == [0, 1, 2, 3, 1]


def test_what_a_dataset_leaves_behind_goes_and_makes_room():
    epochs, gone, there = Epochs(), Dataset(), Dataset()
    left = [weakref.ref(epochs.whole(gone, 7, number)) for number in range(3)]
    del gone
    gc.collect()
    for number in range(3):
        epochs.whole(there, 7, number)
    gc.collect()
    assert [each() for each in left] == [None] * 3
    for number in range(3):
        epochs.whole(there, 7, number)
    assert there.made == [0, 1, 2]
