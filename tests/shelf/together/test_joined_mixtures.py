"""Mixtures of datasets of different max_seq_len, whose short bins are joined into long ones, as they are served."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from tests.server.mixtures import in_process, make_root

from packhorse.cli import main
from packhorse.client import Topology, connect
from packhorse.proof import EpochOfStreams

CURRICULUM = """
max_seq_len = 768
epoch_bins = 150

[[stages]]
until_bins = 40
weights = {truncated = 1}

[[stages]]
until_bins = 90
weights = {rows = 1}

[[stages]]
weights = {named = 2, rows = 1}
"""
"""Of 96, 256 and 384 tokens: 8, 3 and 2 rows."""


@pytest.fixture(scope="module")
def root(corpus, tmp_path_factory):
    root = make_root(corpus, tmp_path_factory.mktemp("joined"))
    (root / "course.mixture.toml").write_text(CURRICULUM)
    return root


@pytest.fixture(scope="module")
def client(root, make_server):
    with make_server(root) as server, connect(server.target, timeout_seconds=20) as client:
        yield client


def test_every_bin_is_rows_of_one_component_and_says_which(client, root):
    info = client.get_dataset("course")
    mixture = in_process(root, "course")
    assert info.max_seq_len == 768
    assert [(each.name, each.max_seq_len, each.rows_per_bin) for each in info.components] == [
        ("truncated", 96, 8),
        ("rows", 256, 3),
        ("named", 384, 2),
    ]
    assert [each.num_bins for each in info.components] == list(mixture.component_bins)
    block = client.get_bins("course", epoch=0, seed=3, positions=range(150))
    assert block.component_ids[:90].tolist() == [0] * 40 + [1] * 50
    assert block.rows.tolist() == mixture.epoch(0, 3).bins(range(150)).rows.tolist()
    of_sequences = block.component_of_sequences()
    bins = np.repeat(np.arange(150), np.diff(block.bin_ends, prepend=0))
    tokens = np.bincount(8 * bins + block.rows, weights=block.lengths, minlength=8 * 150)
    capacities = np.array([each.max_seq_len for each in info.components])[block.component_ids]
    assert (tokens.reshape(150, 8).max(axis=1) <= capacities).all()
    assert [int(block.rows[of_sequences == d].max()) for d in range(3)] == [7, 2, 1]
    with client.stream_bins("course", epoch=0, seed=3) as stream:
        rows = np.concatenate([one.rows for one in stream])
    assert rows.tolist() == block.rows.tolist()
    assert np.concatenate([part.rows for part in block.split(7)]).tolist() == block.rows.tolist()


@pytest.mark.parametrize("epoch", [0, 1])
def test_the_audit_counts_epochs_of_components_in_joined_bins(client, epoch):
    info = client.get_dataset("course")
    topology = Topology(world_size=3, workers_per_rank=2, batch_size=4, balance="micro-step")
    streams = EpochOfStreams(client=client, dataset=info, epoch=epoch, seed=3, topology=topology)
    report = streams.audit()
    assert report.problems == []
    assert [each.bins for each in report.components] == [each.component.num_taken for each in report.components]
    assert sum(each.bins for each in report.components) == 150


def test_the_command_line_tells_rows(client, root):
    arguments = ["mixture", "show", "course", "--target", f"embedded:{root}"]
    shown = CliRunner().invoke(main, arguments).output
    assert "150 bins of 768 tokens in an epoch of 3 components" in shown
    facts = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).output)
    assert [each["rows_per_bin"] for each in facts["components"]] == [8, 3, 2]
    arguments = ["stream", "course", "--target", f"embedded:{root}", "--seed", "3", "--limit", "1"]
    line = json.loads(CliRunner().invoke(main, arguments).output)
    assert line["rows"] == client.get_bins("course", epoch=0, seed=3, positions=[0]).rows.tolist()
