"""PackedDataset, streams and the command line where the batch size changes: on a real server, over epochs and ranks."""

import json
from collections import Counter
from itertools import islice

import pytest
from click.testing import CliRunner
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from packhorse.cli import main
from packhorse.client import Topology
from packhorse.client.errors import InvalidRequestError
from packhorse.client.options import BatchSchedule
from packhorse.pictures import explain_step
from packhorse.proof import EpochOfStreams
from packhorse.trainers import PackedData

SCHEDULE = "0:12 20K:24 1M:6"
MAX_SEQ_LEN = 256


@pytest.fixture
def num_bins(client):
    """Bins of an epoch of `rows`."""
    return client.get_dataset("rows").num_bins


def sizes_counted_out(num_bins, epoch):
    """Bins of every step's optimizer step in order."""
    phases = [(0, 12), (20_000 // MAX_SEQ_LEN, 24), (1_000_000 // MAX_SEQ_LEN, 6)]
    sizes, position = [], 0
    while position < num_bins:
        sizes.append([size for begin, size in phases if begin <= epoch * num_bins + position][-1])
        position += sizes[-1]
    return sizes


def ids_of(batches):
    return [sorted(batch["ids"].tolist()) for batch in batches]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_follow_the_run_over_epochs(make_dataset, whole, num_bins, num_workers):
    datasets = [make_dataset(batch_schedule=SCHEDULE, rank=rank, world_size=3) for rank in range(3)]
    for epoch in range(2):
        ranks = []
        for dataset in datasets:
            dataset.set_epoch(epoch)
            ranks.append(list(DataLoader(dataset, batch_size=None, num_workers=num_workers)))
        sizes = sizes_counted_out(num_bins, epoch)
        assert len({*sizes}) > 1 - epoch
        for batches in ranks:
            assert [len(batch["input_ids"]) * 3 for batch in batches] == sizes
        ends = [sum(sizes[: step + 1]) for step in range(len(sizes))]
        assert [batch["cursor"]["position"] for batch in ranks[0]] == [min(end, num_bins) for end in ends]
        assert Counter(i for batches in ranks for ids in ids_of(batches) for i in ids) == Counter(range(2000))
    datasets[0].set_epoch(1)
    assert len(datasets[0]) == len(sizes)


def test_a_cursor_goes_on_in_any_stage_under_any_number_of_ranks(make_dataset):
    def steps_of(world_size, cursor=None, balance="none"):
        ranks = []
        for rank in range(world_size):
            dataset = make_dataset(batch_schedule=SCHEDULE, rank=rank, world_size=world_size, balance=balance)
            if cursor is not None:
                dataset.load_state_dict(json.loads(json.dumps(cursor)))
                assert dataset.state_dict()["position"] == cursor["position"]
            ranks.append(list(dataset))
        steps = [
            sorted(i for batch in of_ranks for i in batch["ids"].tolist()) for of_ranks in zip(*ranks, strict=True)
        ]
        return steps, [batch["cursor"] for batch in ranks[0]]

    steps, cursors = steps_of(2)
    for done in (1, 5, 7, 8, len(steps) - 1):
        for world_size, balance in ((1, "none"), (6, "none"), (3, "micro-step")):
            assert steps_of(world_size, cursors[done - 1], balance)[0] == steps[done:]


def test_accumulated_steps_share_a_global_batch(make_dataset, num_bins):
    """Within an optimizer step the same topology goes on; another begins it again."""
    options = {"batch_schedule": SCHEDULE, "accumulation": 3, "world_size": 2}
    whole = list(make_dataset(**options))
    sizes = [size // 6 for size in sizes_counted_out(num_bins, 0) for _ in range(3)]
    assert [len(batch["input_ids"]) for batch in whole] == sizes[: len(whole)]
    inside = whole[19]["cursor"]
    assert inside["steps_into_optimizer_step"] == 2
    assert inside["position"] == whole[17]["cursor"]["position"]
    same, other = make_dataset(**options), make_dataset(**(options | {"world_size": 1}))
    for dataset in (same, other):
        dataset.load_state_dict(inside)
    assert ids_of(same) == ids_of(whole[20:])
    assert next(iter(other))["cursor"]["position"] == inside["position"]


@pytest.mark.parametrize("taken", [0, 4, 9])
def test_a_stateful_loader_s_state_goes_on(make_dataset, taken):
    def loader(workers):
        return StatefulDataLoader(make_dataset(batch_schedule=SCHEDULE), batch_size=None, num_workers=workers)

    whole = ids_of(make_dataset(batch_schedule=SCHEDULE))
    first = loader(2)
    assert ids_of(islice(first, taken)) == whole[:taken]
    state = first.state_dict()
    again = loader(2)
    again.load_state_dict(state)
    assert ids_of(again) == whole[taken:]
    alone = make_dataset(batch_schedule=SCHEDULE)
    alone.load_state_dict(state)
    assert ids_of(alone) == whole[taken:]


def test_a_state_behind_its_snapshot_is_refused(make_dataset):
    dataset = make_dataset(batch_schedule=SCHEDULE)
    loader = StatefulDataLoader(dataset, batch_size=None, num_workers=1, snapshot_every_n_steps=4)
    list(islice(loader, 6))
    with pytest.raises(ValueError, match=r"saved 2 batches after .* save with snapshot_every_n_steps=1"):
        dataset.load_state_dict(loader.state_dict())


def test_sizes_that_do_not_divide_are_refused_by_field(client):
    with (
        pytest.raises(
            InvalidRequestError, match="batch_schedule 12, from position 0 on, does not divide among world_size 5"
        ),
        client.stream_bins("rows", topology=Topology(world_size=5, batch_schedule=SCHEDULE)) as stream,
    ):
        next(stream)


@pytest.mark.parametrize("balance", ["none", "optimizer-step"])
@pytest.mark.parametrize("remainder", ["spread", "drop", "repeat", "empty"])
def test_audit_locate_and_explain(client, remainder, balance):
    shape = {"batch_schedule": BatchSchedule.parse(SCHEDULE), "remainder": remainder, "balance": balance}
    topology = Topology(world_size=3, workers_per_rank=2, accumulation=2, start_position=5, **shape)
    report = EpochOfStreams(
        client=client, dataset=client.get_dataset("rows"), epoch=0, seed=3, topology=topology
    ).audit()
    assert report.problems == []
    for place in client.locate("rows", seed=3, ids=range(0, 2000, 191), topology=topology):
        if place.step is not None:
            explained = explain_step(client, "rows", step=place.step, rank=place.rank, seed=3, topology=topology)
            assert place.id in [sequence.id for sequence in explained.rows[place.slot].sequences]


def test_the_command_line_takes_one(running_server, client):
    def run(*arguments):
        result = CliRunner().invoke(main, [*arguments, "--target", running_server.target, "--batch-schedule", SCHEDULE])
        assert result.exit_code == 0, result.output
        return result.output

    lines = [json.loads(line) for line in run("stream", "rows", "--world-size", "3").splitlines()]
    assert Counter(line["step"] for line in lines)[0] == 4
    assert Counter(line["step"] for line in lines)[19] == 8
    assert "exactly once: yes" in run("audit", "rows", "--world-size", "2")
    assert "step 9" in run("show", "rows", "--step", "9", "--rank", "1", "--world-size", "2")
    result = CliRunner().invoke(main, ["stream", "rows", "--batch-schedule", "0:8 5"])
    assert result.exit_code == 2
    assert "--batch-schedule has a phase '5'" in result.output


def test_trainers_that_count_by_one_size_refuse():
    topology = Topology(batch_schedule=SCHEDULE)
    with pytest.raises(ValueError, match=r"^batch_schedule '0:12 20K:24 1M:6' cannot be given here: because$"):
        PackedData("target", "rows", [], topology=topology).refuse_schedule("because")
    PackedData("target", "rows", []).refuse_schedule("because")
