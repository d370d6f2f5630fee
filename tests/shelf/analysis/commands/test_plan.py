"""`packhorse plan compare`: the table's numbers are the plans' own."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tests.flat_words import prepare

from packhorse.analysis import plots, read_histogram
from packhorse.analysis.commands.plan import command
from packhorse.dataset import open_prepared
from packhorse.packing import PACKERS, lower_bound, pack_histogram

COUNTS = {3: 40, 5: 31, 7: 12, 11: 9, 16: 2}


@pytest.fixture
def histogram(tmp_path: Path) -> Path:
    path = tmp_path / "counts.json"
    path.write_text(json.dumps(COUNTS))
    return path


def run(*arguments: str) -> str:
    result = CliRunner().invoke(command, ["compare", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_every_packer_is_compared_by_its_own_plan(histogram: Path) -> None:
    content = json.loads(run(str(histogram), "--max-seq-len", "16", "--json"))
    results = {row["algorithm"]: row for row in content["packers"]}
    assert set(results) == {"auto", *PACKERS}
    for name, row in results.items():
        plan = pack_histogram(COUNTS, 16, algorithm=name)
        assert (row["bins"], row["templates"]) == (plan.num_bins, len(plan.templates))
        assert row["padding_tokens"] == plan.num_bins * 16 - plan.total_tokens
        assert row["padding_ratio"] == pytest.approx(row["padding_tokens"] / (plan.num_bins * 16))
        assert row["lower_bound"] >= lower_bound(COUNTS, 16)
        assert row["gap"] == pytest.approx((plan.num_bins - row["lower_bound"]) / row["lower_bound"])
    assert [row["bins"] for row in results.values()] == sorted(row["bins"] for row in results.values())


def test_options_reach_the_packers(histogram: Path) -> None:
    options = ("--max-seq-len", "32", "--algorithm", "best-fit", "--align", "4", "--extra-tokens", "2")
    (row,) = json.loads(run(str(histogram), *options, "--max-sequences-per-bin", "3", "--json"))["packers"]
    plan = pack_histogram(COUNTS, 32, algorithm="best-fit", align=4, extra_tokens=2, max_sequences_per_bin=3)
    assert (row["bins"], row["templates"]) == (plan.num_bins, len(plan.templates))
    assert row["bins"] > pack_histogram(COUNTS, 32, algorithm="best-fit").num_bins


def test_gpu_hours_follow_the_users_numbers(histogram: Path) -> None:
    options = ("--max-seq-len", "16", "--algorithm", "best-fit", "--tokens-per-gpu-second", "2", "--epochs", "3")
    (row,) = json.loads(run(str(histogram), *options, "--json"))["packers"]
    assert row["gpu_hours"] == pytest.approx(row["padding_tokens"] * 3 / 2 / 3600)
    assert "GPU-hours on padding in your run" in run(str(histogram), *options)


def test_a_plan_that_the_clock_cut_off_is_marked(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    lengths = np.clip(np.random.default_rng(5).lognormal(7, 0.5, 20_000), 1, 2048).astype(int)
    path.write_text(json.dumps(np.bincount(lengths)[1:].tolist()))
    options = (str(path), "--max-seq-len", "2048", "--algorithm", "optimal", "--algorithm", "worst-fit")
    cut = ("--time-limit-seconds", "0.001")
    rows = {row["algorithm"]: row["cut_off"] for row in json.loads(run(*options, *cut, "--json"))["packers"]}
    assert rows == {"optimal": True, "worst-fit": False}
    table = run(*options, *cut)
    assert "optimal *" in table
    assert "worst-fit *" not in table
    assert "* cut off by --time-limit-seconds: another run may give another plan" in table
    small = (str(path), "--max-seq-len", "2048", "--algorithm", "worst-fit")
    assert "cut off" not in run(*small)


def test_a_plot_is_saved(histogram: Path, tmp_path: Path) -> None:
    plot = tmp_path / "plot.png"
    run(str(histogram), "--max-seq-len", "16", "--algorithm", "best-fit", "--plot", str(plot))
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("counts", [COUNTS, {16: 3}])
def test_no_bar_of_a_plot_goes_below_zero(
    counts: dict[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counts.json").write_text(json.dumps(counts))
    drawn: list[Any] = []
    close = plots.pyplot.close
    monkeypatch.setattr(plots.pyplot, "close", lambda figure: (drawn.append(figure), close(figure)))
    run(str(tmp_path / "counts.json"), "--max-seq-len", "16", "--algorithm", "auto", "--plot", str(tmp_path / "p.png"))
    (axes,) = drawn[0].axes
    low, high = axes.get_xlim()
    assert low == 0
    packed, alone = (bar.get_width() for bar in axes.patches)
    assert (packed, alone) == (0, pytest.approx(100 * (sum(counts.values()) / bins_of(counts) - 1)))
    assert alone <= high


def bins_of(counts: dict[int, int]) -> int:
    return pack_histogram(counts, 16).num_bins


def prepared(folder: Path, lengths: list[int], **options: Any) -> Path:
    pq.write_table(pa.table({"n": lengths}), folder / "x.parquet")
    prepare(folder / "x.parquet", length_column="n", output=folder / "set", progress=False, **options)
    return folder / "set"


@pytest.mark.parametrize("policy", ["truncate", "split", "drop"])
@pytest.mark.parametrize("max_seq_len", [8, 10, 40])
def test_a_folders_sequences_are_planned_as_if_prepared_for_this_length(
    policy: str, max_seq_len: int, tmp_path: Path
) -> None:
    lengths = [3, 5, 5, 7, 10, 25, 40]
    folder = prepared(tmp_path, lengths, max_seq_len=10, over_length=policy)
    (tmp_path / "other").mkdir()
    other = open_prepared(prepared(tmp_path / "other", lengths, max_seq_len=max_seq_len, over_length=policy))
    arguments = (str(folder), "--max-seq-len", str(max_seq_len), "--algorithm", "auto", "--json")
    (row,) = json.loads(run(*arguments))["packers"]
    assert row["bins"] == other.manifest.num_bins
    assert row["efficiency"] == pytest.approx(other.manifest.efficiency)


def test_a_folder_keeps_its_options(tmp_path: Path) -> None:
    folder = prepared(tmp_path, [3, 5, 5, 7, 9], max_seq_len=24, align=4, extra_tokens=1, max_sequences_per_bin=2)
    (row,) = json.loads(run(str(folder), "--algorithm", "auto", "--json"))["packers"]
    manifest = open_prepared(folder).manifest
    assert (row["bins"], row["efficiency"]) == (manifest.num_bins, manifest.efficiency)
    (row,) = json.loads(run(str(folder), "--algorithm", "auto", "--align", "8", "--json"))["packers"]
    assert row["bins"] == pack_histogram({8: 4, 16: 1}, 24, max_sequences_per_bin=2).num_bins
    for wrong in (("--align", "6"), ("--extra-tokens", "0")):
        with pytest.raises(ValueError, match="was prepared with align=4 and extra_tokens=1"):
            run(str(folder), *wrong)


def test_training_without_packing_stands_beside_the_packers(histogram: Path) -> None:
    options = (str(histogram), "--max-seq-len", "16", "--algorithm", "best-fit")
    ways = {way["way"]: way for way in json.loads(run(*options, "--json"))["without_packing"]}
    assert set(ways) == {"padded", "sorted-batches", "random-order", "concatenated"}
    assert ways["padded"]["rows"] == sum(COUNTS.values())
    assert f"{ways['padded']['efficiency']:.2%}" in run(*options)


def test_a_list_counts_lengths_from_one(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text("[4, 0, 2]")
    assert read_histogram(path).counts == {1: 4, 3: 2}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense", "not JSON"),
        ("3", "neither"),
        ('{"a": 1}', "'a'"),
        ('{"3": -1}', "-1"),
        ('{"3": 1.5}', "1.5"),
        ("[true]", "True"),
        ("[]", "counts no sequence"),
    ],
)
def test_other_files_are_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        read_histogram(path)


def test_a_histogram_needs_max_seq_len(histogram: Path) -> None:
    with pytest.raises(ValueError, match="give max_seq_len"):
        run(str(histogram))
