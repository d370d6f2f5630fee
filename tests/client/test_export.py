"""An epoch in files: the bins of any ranks in the order of `stream`, in forms that their readers accept."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from packhorse.client.export import export_epoch
from packhorse.topology import Skips, Topology

RUN = {"epoch": 2, "seed": 7}


def bins_of_ranks(client, dataset, topology, **options):
    """Every rank's bins, step after step: position, ids and lengths."""
    of_ranks = []
    for rank in range(topology.world_size):
        bins = []
        with client.stream_bins(dataset, rank=rank, topology=topology, **RUN, **options) as stream:
            for block in stream:
                for position, (ids, lengths) in zip(block.positions.tolist(), block.bins(), strict=True):
                    bins.append((position, ids.tolist(), lengths.tolist()))
        of_ranks.append(bins)
    size = topology.batch_size
    return [
        each for first in range(0, len(of_ranks[0]), size) for bins in of_ranks for each in bins[first : first + size]
    ]


def read_preset_pack(folder):
    """What xtuner's PresetPackDataset and PresetSampler read, with their checks: bins of rows of samples.npy."""
    boundaries = np.load(folder / "boundaries.npy", mmap_mode="r")
    samples = np.load(folder / "samples.npy", mmap_mode="r")
    order = np.load(folder / "order.npy", mmap_mode="r")
    paths = json.loads((folder / "paths.json").read_text(encoding="utf-8"))
    assert boundaries.dtype == samples.dtype == order.dtype == np.int64
    assert boundaries[0] == 0
    assert boundaries[-1] == len(samples)
    assert samples.ndim == 2
    assert samples.shape[1] == 6
    assert order.ndim == 1
    assert ((samples[:, 0] >= 0) & (samples[:, 0] < len(paths))).all()
    assert (samples[:, 2:4] == -1).all()
    assert (samples[:, 4] >= 0).all()
    assert (samples[:, 5] > samples[:, 4]).all()
    return [samples[boundaries[pack] : boundaries[pack + 1]].tolist() for pack in order]


@pytest.mark.parametrize("topology", [Topology(), Topology(world_size=3, batch_size=2)])
@pytest.mark.parametrize("skip", [Skips(), Skips.of([(3, 9)])])
def test_every_format_has_the_order_of_the_streams(client, tmp_path, topology, skip):
    options = {"skip": skip, **RUN}
    num_bins = export_epoch(client, "rows", tmp_path / "plan.jsonl", file_format="jsonl", **options)
    lines = [json.loads(line) for line in (tmp_path / "plan.jsonl").read_text().splitlines()]
    bins = [(line["position"], line["ids"], line["lengths"]) for line in lines]
    assert len(bins) == num_bins > 20
    num_full = num_bins - num_bins % topology.bins_per_step  # the last step is spread over its ranks
    assert bins_of_ranks(client, "rows", topology, skip=skip)[:num_full] == bins[:num_full]

    export_epoch(client, "rows", tmp_path / "plan.parquet", file_format="parquet", **options)
    table = pq.read_table(tmp_path / "plan.parquet").to_pydict()
    assert list(zip(table["position"], table["ids"], table["lengths"], strict=True)) == bins
    assert set(table["component"]) == set(table["groups"]) == {None}

    export_epoch(client, "rows", tmp_path / "plan", file_format="xtuner", paths=["rows.jsonl"], **options)
    packs = read_preset_pack(tmp_path / "plan")
    assert [[row[1] for row in pack] for pack in packs] == [ids for _, ids, _ in bins]
    assert [[row[5] - row[4] for row in pack] for pack in packs] == [lengths for _, _, lengths in bins]


def test_progress_counts_every_bin(client, tmp_path):
    counted = []
    num_bins = export_epoch(client, "rows", tmp_path / "plan", file_format="jsonl", on_bins=counted.append)
    assert sum(counted) == num_bins


@pytest.mark.parametrize(
    ("output", "options", "message"),
    [
        ("s3://bucket/plan", {"file_format": "jsonl"}, "is a URL"),
        ("plan", {"file_format": "csv"}, "file_format must be one of jsonl, parquet, xtuner"),
        ("plan", {"file_format": "xtuner"}, "paths"),
        ("plan", {"file_format": "jsonl", "paths": ["a"]}, "paths"),
        ("plan", {"file_format": "xtuner", "paths": ["a", "b"]}, "paths has 2 files"),
    ],
)
def test_what_cannot_be_written_is_refused(client, tmp_path, monkeypatch, output, options, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        export_epoch(client, "rows", output, **options)
    assert not list(tmp_path.iterdir())


def test_an_output_that_is_there_stays(client, tmp_path):
    output = tmp_path / "plan.jsonl"
    output.write_text("mine")
    with pytest.raises(FileExistsError, match=r"plan\.jsonl"):
        export_epoch(client, "rows", output, file_format="jsonl")
    assert output.read_text() == "mine"


def test_after_a_failure_there_is_no_file(client, tmp_path):
    def fail(num_bins):
        raise OSError("the disk is full")

    for file_format, paths in (("jsonl", []), ("parquet", []), ("xtuner", ["rows.jsonl"])):
        with pytest.raises(OSError, match="full"):
            export_epoch(client, "rows", tmp_path / file_format, file_format=file_format, paths=paths, on_bins=fail)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
