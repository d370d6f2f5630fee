"""`packhorse inspect`: what it shows is what the folder holds."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from packhorse.cli.context_lengths import context_lengths
from packhorse.cli.inspect import command
from packhorse.dataset import PreparedDataset, open_prepared
from packhorse.prepare import prepare


@pytest.fixture
def prepared(tmp_path: Path) -> PreparedDataset:
    lengths = np.random.default_rng(3).integers(1, 65, 500)
    pq.write_table(pa.table({"n": lengths}), tmp_path / "lengths.parquet")
    prepare(tmp_path / "lengths.parquet", length_column="n", max_seq_len=64, output=tmp_path / "set", progress=False)
    return open_prepared(tmp_path / "set")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(command, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_json_holds_manifest_stats_and_templates(prepared: PreparedDataset) -> None:
    content = json.loads(run(str(prepared.path), "--json", "--templates", "4"))
    assert content["manifest"]["digest"] == prepared.manifest.digest
    assert content["stats"]["n_bins"] == prepared.manifest.n_bins
    assert content["templates"] == [[list(t), m] for t, m in prepared.templates.most_common(4)]
    assert prepared.manifest.max_seq_len in [choice["max_seq_len"] for choice in content["context_lengths"]]


def test_tables_and_plot(prepared: PreparedDataset, tmp_path: Path) -> None:
    plot = tmp_path / "plot.png"
    shown = run(str(prepared.path), "--plot", str(plot))
    assert f"{prepared.manifest.n_bins:,}" in shown
    assert prepared.manifest.digest in shown
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_context_lengths_count_what_truncating_takes_away() -> None:
    counts = Counter({10: 3, 100: 2})
    choices = {choice.max_seq_len: choice for choice in context_lengths(counts, own=100)}
    assert (choices[64].sequences_cut, choices[64].tokens_cut) == (2, 72)
    assert (choices[100].sequences_cut, choices[100].tokens_cut) == (0, 0)
    assert choices[100].bins == 3
    assert choices[128].padded_efficiency == pytest.approx(230 / (5 * 128))
    assert choices[128].efficiency == pytest.approx(230 / (choices[128].bins * 128))
