"""`packhorse inspect` of what nobody has prepared: the same figures as preparing it first."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from tests.flat_words import prepare

from packhorse.cli import main
from packhorse.tokenize import train_tokenizer


def run(*arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(main, ["inspect", *arguments], catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result


def facts(*arguments: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(run("--json", *arguments).stdout)
    return content


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    values = np.random.default_rng(3).integers(1, 90, 500)
    pq.write_table(pa.table({"num_tokens": values, "url": list(map(str, values))}), tmp_path / "lengths.parquet")
    return tmp_path / "lengths.parquet"


def test_figures_are_those_of_the_prepared_folder(lengths: Path, tmp_path: Path) -> None:
    prepare(lengths, max_seq_len=64, over_length="split", output=tmp_path / "lengths", progress=False)
    raw = facts(str(lengths), "--max-seq-len", "64", "--world-size", "2")
    own = facts(str(tmp_path / "lengths"), "--world-size", "2")
    for fact in ("stats", "templates", "context_lengths", "without_packing", "waiting", "bin_mates_again"):
        assert raw[fact] == own[fact]
    assert raw["manifest"]["digest"] == own["manifest"]["digest"]
    assert raw["manifest"]["inputs"]["length_column"] == "num_tokens"
    assert raw["share_read"] == 1.0
    assert raw["standard_errors"] == {}
    assert raw["packers"][0]["algorithm"] != "length-sorted"


def test_options_of_prepare_follow_two_dashes(lengths: Path) -> None:
    made = facts(str(lengths), "--max-seq-len", "64", "--", "--over-length", "drop", "--align", "8")
    assert made["manifest"]["options"]["over_length"] == "drop"
    assert made["manifest"]["options"]["align"] == 8
    refused = run(str(lengths), "--max-seq-len", "64", "--", "--over-length", "error", status=1)
    assert "(here, after `--`: packhorse inspect" in refused.stderr


def test_the_default_is_said_and_nothing_stays(lengths: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    shown = run(str(lengths)).stdout
    assert shown.startswith("of the tokens that a GPU computes, real are: packed ")
    assert "planned for max_seq_len 4,096; --max-seq-len gives yours\n" in shown
    assert shown.rstrip().endswith("--output DIR")
    assert f"next: packhorse prepare --input {lengths} --max-seq-len 4096 --over-length split" in shown
    assert "auto (" in shown
    assert "packhorse serve" not in shown
    assert os.listdir(tmp_path / "temporary") == []


def test_costs(lengths: Path) -> None:
    options = ("--max-seq-len", "64", "--tokens-per-gpu-second", "10", "--gpu-hour-price", "3")
    _, line = run(str(lengths), *options).stdout.replace("\n", " ").split("cost: ")
    rows = facts(str(lengths), "--max-seq-len", "64")["without_packing"][0]["rows"]
    hours = rows * 64 / 10 / 3600
    assert line.startswith(f"an epoch takes {hours:,.2f} GPU-hours (costs {3 * hours:,.2f}) padded to max_seq_len")


def test_a_page_of_raw_lengths(lengths: Path, tmp_path: Path) -> None:
    run(str(lengths), "--max-seq-len", "64", "--report", str(tmp_path / "page.html"))
    assert "lengths, packed by Packhorse" in (tmp_path / "page.html").read_text()


def test_text_and_a_sample_of_it(tmp_path: Path) -> None:
    words = np.random.default_rng(0).geometric(0.05, 2000).tolist()
    rows = [{"text": "word " * count} for count in words]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train_tokenizer([row["text"] for row in rows], vocab_size=300).save(str(tmp_path / "tokenizer.json"))
    options = ("--tokenizer", str(tmp_path / "tokenizer.json"), "--max-seq-len", "128")
    more = ("--", "--no-eos")
    whole = facts(str(tmp_path / "corpus.jsonl"), *options, *more)
    part = facts(str(tmp_path / "corpus.jsonl"), *options, "--sample", "500", *more)
    assert whole["manifest"]["inputs"]["rows"] == 2000
    assert part["share_read"] == pytest.approx(0.25, rel=0.3)
    assert part["manifest"]["inputs"]["rows"] < 800
    for ways in (0, 2):  # padded, random order: the sample is near the whole, as its errors say
        difference = part["without_packing"][ways]["efficiency"] - whole["without_packing"][ways]["efficiency"]
        assert abs(difference) < 4 * part["standard_errors"][whole["without_packing"][ways]["way"]]
    assert (
        "standard errors, in points" in run(str(tmp_path / "corpus.jsonl"), *options, "--sample", "500", *more).stdout
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("set", "--max-seq-len", "64"), "set is prepared"),
        (("--tokenizer", "x"), "DATASET must name them"),
        (("no.parquet", "--max-seq-len", "8"), "no.parquet does not exist"),
        (("lengths.parquet", "--sample", "9"), "--sample goes with --tokenizer"),
        (("nothing.parquet",), "nothing.parquet does not exist"),
        (("lengths.parquet", "--gpu-hour-price", "3"), "--gpu-hour-price needs --tokens-per-gpu-second"),
        (("lengths.parquet", "--report", "x.html", "--json"), "--report goes without --json"),
        (("lengths.parquet", "--align", "8"), "it goes after `--`"),
        (("lengths.parquet", "--misspelt"), "No such option"),
        (("lengths.parquet", "--", "--output=x"), "keeps nothing: --output is"),
        (("lengths.parquet", "--", "--dry-run"), "keeps nothing: --dry-run is"),
        (("text.jsonl",), "text.jsonl is text: give --tokenizer"),
        (("empty",), "the folder empty has no files"),
        (("*.npz",), "npz"),
    ],
)
def test_wrong_input_is_named(
    arguments: tuple[str, ...], named: str, lengths: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PACKHORSE_TARGET", raising=False)
    prepare(lengths, max_seq_len=64, over_length="truncate", output=tmp_path / "set", progress=False)
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": "a"}) + "\n")
    result = CliRunner().invoke(main, ["inspect", *arguments, "--timeout-seconds", "0.2"])
    assert result.exit_code in (1, 2)
    assert named in result.stderr
