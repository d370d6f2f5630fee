"""Groups from a real server to batches: whole in every bin, under every topology, and after every resume."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from torch.utils.data import DataLoader

from packhorse.cli import main
from packhorse.client import (
    EpochOfStreams,
    MemoryDatasets,
    PackedBins,
    PackedDataset,
    Skips,
    Topology,
    connect,
    draw_bins,
    explain_step,
)
from packhorse.prepare import prepare

NUM_GROUPS = 300


@pytest.fixture(scope="module")
def rollouts():
    """Columns of a table: tokens, prompt (the group) and id."""
    random = np.random.default_rng(5)
    sizes = random.integers(1, 5, NUM_GROUPS)
    num = int(sizes.sum())
    return {
        "tokens": [random.integers(1, 1000, length).tolist() for length in random.integers(1, 50, num)],
        "prompt": np.repeat(random.permutation(NUM_GROUPS) + 1000, sizes),
        "id": random.permutation(10 * num)[:num],
    }


@pytest.fixture(scope="module")
def groups(rollouts):
    """Group → ids of its sequences, in order."""
    found = {}
    for group, number in zip(rollouts["prompt"].tolist(), rollouts["id"].tolist(), strict=True):
        found.setdefault(group, []).append(number)
    return found


@pytest.fixture(scope="module")
def root(rollouts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("groups")
    pq.write_table(pa.table(rollouts), folder / "rollouts.parquet")
    options = {"max_seq_len": 256, "progress": False}
    path = folder / "rollouts.parquet"
    prepare(path, id_column="id", group_column="prompt", output=folder / "root" / "rollouts", **options)
    prepare(path, output=folder / "root" / "plain", **options)
    (folder / "root" / "both.mixture.toml").write_text(
        "epoch_bins = 60\n\n[[stages]]\nweights = {rollouts = 2, plain = 1}\n"
    )
    return folder


@pytest.fixture(scope="module")
def target(root, make_server):
    with make_server(root / "root") as server:
        yield server.target


def whole_groups(batch, groups):
    """Groups of a batch in order; fails where one is not whole, in order, and in one row."""
    layout, ids, came = batch["layout"], batch["ids"].tolist(), []
    assert batch["group_ids"].tolist() == layout.group_ids.tolist()
    begin = 0
    for end in layout.row_ends.tolist():
        at = begin
        while at < end:
            group = int(layout.group_ids[at])
            size = len(groups[group])
            assert ids[at : at + size] == groups[group]
            assert set(layout.group_ids[at : at + size].tolist()) == {group}
            came.append(group)
            at += size
        assert at == end
        begin = end
    return came


@pytest.mark.parametrize("balance", ["none", "micro-step"])
def test_a_server_streams_whole_groups_and_the_audit_counts_members(target, root, groups, balance):
    topology = Topology(world_size=3, workers_per_rank=2, batch_size=4, balance=balance, accumulation=2)
    with connect(target) as client, connect(f"embedded:{root}/root") as embedded:
        info = client.get_dataset("rollouts")
        assert (info.num_groups, info.num_sequences) == (NUM_GROUPS, sum(map(len, groups.values())))
        streams = EpochOfStreams(
            client=client, dataset=info, epoch=1, seed=7, topology=topology, skip=Skips.parse(["3:6"])
        )
        report = streams.audit()
        assert (report.problems, report.sequences) == ([], info.num_sequences)
        for each in (client, embedded):
            block = each.get_bins("rollouts", epoch=1, seed=7, positions=[2, 0, 2])
            assert block.slice(0, 1).group_ids.tolist() == block.slice(2, 3).group_ids.tolist()
            ids, of_groups = block.ids.tolist(), block.group_ids.tolist()
            assert all(number in groups[group] for number, group in zip(ids, of_groups, strict=True))
        found = client.locate("rollouts", epoch=1, seed=7, ids=[*ids[:3], 10**9], topology=topology)
        assert [location.found for location in found] == [True] * 3 + [False]
        for location in found[:3]:
            one = client.get_bins("rollouts", epoch=1, seed=7, positions=[location.position])
            assert one.ids[location.index_in_bin] == location.id


def test_batches_hold_whole_groups_and_resume_under_another_world_size(root, groups):
    def batches(world_size, rank, state=None, **options):
        dataset = PackedDataset(
            *(f"embedded:{root}/root", "rollouts", str(root / "rollouts.parquet")),
            **{"batch_size": 2, "seed": 4, "rank": rank, "world_size": world_size} | options,
        )
        if state is not None:
            dataset.load_state_dict(state)
        return DataLoader(dataset, batch_size=None)

    first = [list(batches(3, rank)) for rank in range(3)]
    came = [group for rank in first for batch in rank for group in whole_groups(batch, groups)]
    assert sorted(came) == sorted(groups)
    before = [group for rank in first for batch in rank[:4] for group in whole_groups(batch, groups)]
    state = first[0][3]["cursor"]
    for world_size, options in ((2, {"batch_size": 3}), (5, {"flatten": False})):
        after = [
            group
            for rank in range(world_size)
            for batch in batches(world_size, rank, state, **options)
            for group in whole_groups(batch, groups)
        ]
        assert sorted(before + after) == sorted(groups)


def test_random_access_flattened_rows_and_pictures_know_groups(root, groups):
    tokens = str(root / "rollouts.parquet")
    bins = PackedBins(f"embedded:{root}/root", "rollouts", tokens, seed=4)
    assert whole_groups(bins.collate(bins.__getitems__([3, 0])), groups)
    flat = next(iter(PackedDataset(f"embedded:{root}/root", "rollouts", tokens, batch_size=4, flatten=True)))
    assert flat["layout"].num_rows == 1
    assert whole_groups(flat, groups)
    with connect(f"embedded:{root}/root") as client:
        picture = draw_bins(client, "rollouts", positions=[0])
        assert {sequence.group for sequence in picture.rows[0].sequences} <= set(groups)
        step = explain_step(client, "rollouts", step=0, seed=1)
        assert step.facts()["bins"][0]["sequences"][0]["group"] in groups


def test_a_mixture_of_groups_and_single_sequences(root, groups, target):
    tokens = {name: str(root / "rollouts.parquet") for name in ("rollouts", "plain")}
    dataset = PackedDataset(target, "both", tokens, batch_size=6, seed=2, rank=0, world_size=1)
    for batch in dataset:
        of_groups = batch["group_ids"][batch["dataset_ids"] == list(batch["dataset_names"]).index("rollouts")]
        assert set(of_groups.tolist()) <= set(groups)
        assert (batch["group_ids"] >= 0).sum() == len(of_groups)
    with connect(target) as client:
        streams = EpochOfStreams(
            client=client, dataset=client.get_dataset("both"), epoch=0, seed=2, topology=Topology(world_size=4)
        )
        assert streams.audit().problems == []


def test_the_command_line_shows_groups(root, target):
    def run(*arguments):
        result = CliRunner().invoke(main, [*arguments, "--target", target])
        assert result.exit_code == 0, result.output
        return result.output

    assert '"groups": [' in run("stream", "--dataset", "rollouts", "--limit", "1")
    assert " of group 1" in run("explain", "rollouts", "--step", "0", "--seed", "1")
    said = run("audit", "--dataset", "rollouts", "--tokens", str(root / "rollouts.parquet"), "--id-column", "id")
    assert "exactly once: yes" in said


def test_datasets_in_memory_have_groups(groups):
    datasets = MemoryDatasets({"pairs": [5, 3, 3, 5, 2, 2]}, max_seq_len=8, group_size=2)
    with connect(datasets) as client:
        block = client.get_bins("pairs", seed=1, positions=[0, 1, 2])
    assert sorted(pair.tolist() for pair in np.split(block.ids, 3)) == [[0, 1], [2, 3], [4, 5]]
