"""`packhorse plan compare`: the table's numbers are the plans' own."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from packhorse.cli.histogram_input import read_histogram
from packhorse.cli.plan import command
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
    results = {row["algorithm"]: row for row in json.loads(run(str(histogram), "--max-seq-len", "16", "--json"))}
    assert set(results) == {"auto", *PACKERS}
    for name, row in results.items():
        plan = pack_histogram(COUNTS, 16, algorithm=name)
        assert (row["bins"], row["templates"]) == (plan.num_bins, len(plan.templates))
        assert row["padding_tokens"] == plan.num_bins * 16 - plan.total_tokens
        assert row["gpu_hours_per_million"] == pytest.approx(1e6 * row["padding_tokens"] / (plan.num_bins * 16))
        assert row["lower_bound"] >= lower_bound(COUNTS, 16)
        assert row["gap"] == pytest.approx((plan.num_bins - row["lower_bound"]) / row["lower_bound"])
    assert [row["bins"] for row in results.values()] == sorted(row["bins"] for row in results.values())


def test_options_reach_the_packers(histogram: Path) -> None:
    options = ("--max-seq-len", "32", "--algorithm", "best-fit", "--align", "4", "--extra-tokens", "2")
    (row,) = json.loads(run(str(histogram), *options, "--max-sequences-per-bin", "3", "--json"))
    plan = pack_histogram(COUNTS, 32, algorithm="best-fit", align=4, extra_tokens=2, max_sequences_per_bin=3)
    assert (row["bins"], row["templates"]) == (plan.num_bins, len(plan.templates))
    assert row["bins"] > pack_histogram(COUNTS, 32, algorithm="best-fit").num_bins


def test_gpu_hours_follow_the_users_numbers(histogram: Path) -> None:
    options = ("--max-seq-len", "16", "--algorithm", "best-fit", "--tokens-per-gpu-second", "2", "--epochs", "3")
    (row,) = json.loads(run(str(histogram), *options, "--json"))
    assert row["gpu_hours"] == pytest.approx(row["padding_tokens"] * 3 / 2 / 3600)
    assert "GPU-h of your run" in run(str(histogram), *options)


def test_a_plan_that_the_clock_cut_off_is_marked(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    lengths = np.clip(np.random.default_rng(5).lognormal(7, 0.5, 20_000), 1, 2048).astype(int)
    path.write_text(json.dumps(np.bincount(lengths)[1:].tolist()))
    options = (str(path), "--max-seq-len", "2048", "--algorithm", "optimal", "--algorithm", "worst-fit")
    cut = ("--time-limit-seconds", "0.001")
    rows = {row["algorithm"]: row["cut_off"] for row in json.loads(run(*options, *cut, "--json"))}
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


def test_a_list_counts_lengths_from_one(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text("[4, 0, 2]")
    assert read_histogram(path).counts == {1: 4, 3: 2}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense", "no JSON"),
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
    with pytest.raises(ValueError, match="--max-seq-len"):
        run(str(histogram))
