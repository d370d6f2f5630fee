"""The end of an epoch at 1,000 ranks: the last, partial step, and where its sequences went."""

import time

import numpy as np
from harness import Row, Sample, interleaved, timed
from workload import Workspace, in_words

from packhorse.dataset import PreparedDataset, open_prepared
from packhorse.epoch import Assignment, EpochView
from packhorse.server.methods.stream_request import Epochs
from packhorse.topology import RemainderPolicy, Skips, Topology

NOTE = (
    "an epoch's end: 1,000 ranks × 8 bins, the last step two thirds full, in one process. Processor seconds in all for "
    "every rank's last batch, each read by a stream of its own, every time in another epoch; beside it the policy "
    "that adds empty bins. Then where 10,000 sequences of that step went."
)
RANKS, BATCH = 1000, 8
NUM_IDS = 10_000


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    sizes = workspace.sizes
    dataset = open_prepared(workspace.prepared(sizes.small))
    epochs = iter(range(10**6))

    def cost(remainder: RemainderPolicy) -> float:
        epoch = next(epochs)
        return timed(lambda: _last_step(dataset, epoch, remainder), clock=time.process_time)

    cost(RemainderPolicy.SPREAD)  # compiles
    spread, empty = interleaved(
        sizes.repeats, lambda: cost(RemainderPolicy.SPREAD), lambda: cost(RemainderPolicy.EMPTY)
    )
    located = tuple(_locate(dataset, next(epochs)) for _ in range(sizes.repeats))
    size = f"{in_words(sizes.small)} sequences"
    spread_sample, empty_sample, located_sample = Sample(spread, "s"), Sample(empty, "s"), Sample(located, "s")
    return [
        Row(
            what="last step of an epoch, 1,000 ranks × 8",
            size=size,
            ours=str(spread_sample),
            peer=f"{empty_sample}, packhorse adding empty bins",
            ratio=empty_sample.median / spread_sample.median,
            target="< 1 s of processor time",
            reached=spread_sample.median < 1,
        ),
        Row(
            what="locate 10,000 ids of that step",
            size=size,
            ours=str(located_sample),
            target="< 1 s",
            reached=located_sample.median < 1,
        ),
    ]


def _topology(num_bins: int, remainder: RemainderPolicy = RemainderPolicy.SPREAD) -> Topology:
    last = min(RANKS * BATCH * 2 // 3, num_bins)
    return Topology(world_size=RANKS, batch_size=BATCH, start_position=num_bins - last, remainder=remainder)


def _last_step(dataset: PreparedDataset, epoch: int, remainder: RemainderPolicy) -> None:
    """Every rank asks as its stream does in the server, which keeps the assignment for all of them."""
    epochs = Epochs()
    for rank in range(RANKS):
        topology = _topology(dataset.plan.num_bins, remainder)
        bins = epochs.assignment(dataset, 1, epoch, Skips(), topology).bins(range(1), rank)
        assert len(bins) == BATCH


def _locate(dataset: PreparedDataset, epoch: int) -> float:
    view = EpochView(dataset.plan, dataset.pool, seed=1, epoch=epoch)
    topology = _topology(view.num_bins)
    tail = view.bins(np.arange(topology.start_position, view.num_bins))
    ids = np.resize(tail.ids, NUM_IDS)

    def locate() -> None:
        found = view.locate(ids)
        places = Assignment(view, topology).locate(found.positions, found.index_in_bin)
        assert (places.steps == 0).all()

    return timed(locate)
