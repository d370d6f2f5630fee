"""`packhorse inspect`: what it shows is what the folder holds."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tests.flat_words import prepare

from packhorse.analysis import context_lengths, dataset_report
from packhorse.analysis.commands.inspect import command
from packhorse.dataset import PreparedDataset, open_prepared
from packhorse.epoch.figures.waiting import waiting_of_plan
from packhorse.prepare import Resource
from packhorse.topology import Topology


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
    assert content["stats"]["n_bins"] == prepared.manifest.num_bins
    assert content["templates"] == [[list(t), m] for t, m in prepared.templates.most_common(4)]
    assert prepared.manifest.max_seq_len in [choice["max_seq_len"] for choice in content["context_lengths"]]


def test_tables_and_plot(prepared: PreparedDataset, tmp_path: Path) -> None:
    plot = tmp_path / "plot.png"
    shown = run(str(prepared.path), "--plot", str(plot))
    assert f"{prepared.manifest.num_bins:,}" in shown
    assert prepared.manifest.digest in shown
    assert plot.read_bytes().startswith(b"\x89PNG")


def dataset_of(folder: Path, lengths: list[int], **options: Any) -> PreparedDataset:
    pq.write_table(pa.table({"n": lengths}), folder / "x.parquet")
    prepare(folder / "x.parquet", length_column="n", output=folder / "set", progress=False, **options)
    return open_prepared(folder / "set")


def test_context_lengths_count_what_truncating_takes_away(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, [10, 10, 10, 100, 100], max_seq_len=100)
    choices = {choice.max_seq_len: choice for choice in context_lengths(dataset)}
    assert (choices[64].sequences_cut, choices[64].tokens_cut) == (2, 72)
    assert (choices[100].sequences_cut, choices[100].tokens_cut) == (0, 0)
    assert choices[100].bins == 3
    assert choices[128].padded_efficiency == pytest.approx(230 / (5 * 128))
    assert choices[128].efficiency == pytest.approx(230 / (choices[128].bins * 128))


@pytest.mark.parametrize("policy", ["truncate", "split", "drop"])
@pytest.mark.parametrize(("align", "extra"), [(1, 0), (8, 2)])
def test_context_lengths_are_what_preparing_for_them_would_make(
    policy: str, align: int, extra: int, tmp_path: Path
) -> None:
    lengths = np.random.default_rng(1).integers(1, 400, 300).tolist()
    options = {"over_length": policy, "align": align, "extra_tokens": extra, "algorithm": "best-fit"}
    for choice in context_lengths(dataset_of(tmp_path, lengths, max_seq_len=96, **options)):
        folder = tmp_path / str(choice.max_seq_len)
        folder.mkdir()
        manifest = dataset_of(folder, lengths, max_seq_len=choice.max_seq_len, **options).manifest
        near = 0.01 if policy == "split" and align > 1 else 0  # where a last piece ends, only rooms are known
        assert choice.bins == pytest.approx(manifest.num_bins, rel=near)
        assert choice.efficiency == pytest.approx(manifest.efficiency, rel=near or 1e-9)
        assert choice.sequences_cut == manifest.over_length.sequences
        if align == 1:
            assert choice.tokens_cut == manifest.over_length.tokens


def test_real_tokens_are_told_from_rooms(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, [6] * 16, max_seq_len=16, align=8)
    content = json.loads(run(str(dataset.path), "--json"))
    assert content["stats"]["efficiency"] == 1.0
    assert content["real_token_efficiency"] == 0.75
    assert "real tokens: 75.00% of capacity" in run(str(dataset.path))


def test_plain_lengths_have_one_efficiency(prepared: PreparedDataset) -> None:
    assert "real tokens" not in run(str(prepared.path))


def test_waiting_is_shown_by_ranks_and_context_length(prepared: PreparedDataset, tmp_path: Path) -> None:
    options = ("--world-size", "8", "--accumulation", "4", "--batch-size", "1", "--cost-linear", "7")
    content = json.loads(run(str(prepared.path), *options, "--json"))
    sizes = [choice["max_seq_len"] for choice in content["context_lengths"]]
    assert [(row["max_seq_len"], row["world_size"]) for row in content["waiting"]] == sorted(
        [*((size, 8) for size in sizes), (64, 2), (64, 32)]
    )
    topology = Topology(world_size=8, accumulation=4, cost_linear=7)
    expected = waiting_of_plan(prepared.plan, topology)
    assert expected is not None
    (own,) = (row for row in content["waiting"] if (row["max_seq_len"], row["world_size"]) == (64, 8))
    for balance, found in expected.items():
        shown = own["balances"][balance.value]
        assert shown["time_beyond_work_at_steps"] == found.at_steps
        assert shown["time_beyond_work_at_optimizer_steps"] == found.at_optimizer_steps
        assert shown["idle_share_at_steps"] == pytest.approx(found.at_steps / (1 + found.at_steps))
    plot = tmp_path / "plot.png"
    shown = run(str(prepared.path), *options, "--plot", str(plot))
    assert "of GPU time is lost to waiting; --balance micro-step leaves" in shown
    assert "GPU time that ranks lose by waiting" in shown
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_without_a_world_size_it_says_how_to_see_waiting(prepared: PreparedDataset) -> None:
    assert "give --world-size and --accumulation" in run(str(prepared.path))
    assert json.loads(run(str(prepared.path), "--json"))["waiting"] == []


def test_training_without_packing_is_shown(prepared: PreparedDataset) -> None:
    ways = {way["way"]: way for way in json.loads(run(str(prepared.path), "--json"))["without_packing"]}
    assert ways["padded"]["rows"] == 500
    assert ways["padded"]["efficiency"] == pytest.approx(prepared.manifest.total_tokens / (500 * 64))
    assert "rows filled in random order" in run(str(prepared.path))


def test_a_seqpack_folder_is_refused_with_the_way_out(prepared: PreparedDataset, tmp_path: Path) -> None:
    folder = tmp_path / "seqpack"
    prepare(
        tmp_path / "lengths.parquet",
        length_column="n",
        max_seq_len=64,
        output=folder,
        format="seqpack",
        progress=False,
    )
    with pytest.raises(ValueError, match=r"seqpack has seqpack's layout.*prepare it with format='packhorse'"):
        CliRunner().invoke(command, [str(folder)], catch_exceptions=False)


def test_windows_are_compared(prepared: PreparedDataset, tmp_path: Path) -> None:
    plot = tmp_path / "plot.png"
    shown = run(str(prepared.path), "--windows", "--plot", str(plot))
    assert "windowed(8)" in shown
    assert "windowed(32)" not in shown  # of fewer than 16 bins each
    assert plot.read_bytes().startswith(b"\x89PNG")
    rows = json.loads(run(str(prepared.path), "--windows", "--json"))["windows"]
    assert [row["num_windows"] for row in rows] == [1, 8]
    assert rows[1]["chi_square"] > 2 > rows[0]["chi_square"]
    assert rows[1]["neighbours"] > 1.5


def test_groups_that_were_left_out_are_counted_up_to_the_own_context_length(tmp_path: Path) -> None:
    pairs = [10, 10, 20, 20, 30, 31]  # the last pair is too long
    dataset = dataset_of(tmp_path, pairs, max_seq_len=48, group_size=2, over_length="drop")
    choices = {each.max_seq_len: each for each in context_lengths(dataset)}
    assert (choices[48].sequences_cut, choices[48].tokens_cut) == (1, 61)
    assert (choices[32].sequences_cut, choices[32].tokens_cut) == (2, 101)
    assert (choices[64].sequences_cut, choices[64].tokens_cut) == (0, 0)


def test_rooms_are_in_order_though_classes_of_resources_are_not(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    table = {"n": generator.integers(1, 4000, 20_000), "num_tiles": generator.integers(0, 40, 20_000)}
    pq.write_table(pa.table(table), tmp_path / "x.parquet")
    tiles = Resource.parse("tiles=num_tiles:64")
    prepare(tmp_path / "x.parquet", length_column="n", resources=(tiles,), max_seq_len=4096, output=tmp_path / "set")
    dataset = open_prepared(tmp_path / "set")
    rooms = np.repeat(dataset.plan.rooms, dataset.plan.counts)
    assert (np.diff(rooms) < 0).any()
    quantiles = dataset_report(dataset).quantiles
    assert quantiles == {q: np.quantile(rooms, q, method="inverted_cdf") for q in quantiles}
    assert f"lengths: {rooms.min():,} to {rooms.max():,} tokens" in run(str(dataset.path))
