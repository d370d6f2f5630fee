"""`packhorse prepare`: flags and what is printed."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import seqpack.prepare
from click.testing import CliRunner, Result

from packhorse.cli.prepare import command
from packhorse.client.transport.requests import topology_message
from packhorse.dataset import open_prepared
from packhorse.formats import MegatronWriter
from packhorse.prepare import _sort
from packhorse.server.datasets.catalog import Catalog
from packhorse.server.datasets.mixtures import Mixtures
from packhorse.server.methods.backend import Backend
from packhorse.topology import Topology
from packhorse.v1 import packing_pb2 as pb


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    lengths = np.random.default_rng(3).integers(1, 100, 500)
    pq.write_table(pa.table({"n": lengths, "id": np.arange(500) + 7}), tmp_path / "x.parquet")
    return tmp_path / "x.parquet"


def test_prints_statistics_ledger_digest_and_the_next_command(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "root dir" / "set"
    flags = ("--length-column", "n", "--id-column", "id", "--max-seq-len", 90, "--over-length", "drop")
    result = invoke("--input", table, "--output", out, "--max-sequences-per-bin", 5, "--workers", 1, *flags)
    assert result.exit_code == 0, result.output
    dataset = open_prepared(out)
    manifest = dataset.manifest
    assert manifest.options.max_sequences_per_bin == 5
    assert manifest.options.over_length == "drop"
    ledger = f"{manifest.over_length.sequences:,} sequences dropped; {manifest.over_length.tokens:,} tokens are lost"
    assert ledger in result.output
    for words in ("PackingStats(", f"bins:        {manifest.num_bins:,}", "efficiency:", manifest.digest, str(out)):
        assert words in result.output
    assert f"packhorse serve --data-root '{out.parent}'" in result.output
    assert "over length" not in invoke(
        "--input", table, "--output", tmp_path / "o", "--length-column", "n", "--max-seq-len", 100
    ).output  # fmt: skip


def test_without_a_bins_tokens_the_flag_is_named(table: Path, tmp_path: Path) -> None:
    result = invoke("--input", table, "--output", tmp_path / "o", "--length-column", "n")
    assert str(result.exception) == "give max_seq_len: the tokens of a bin, as many as the model's context"


def test_index_input_and_seqpack_format(tmp_path: Path) -> None:
    with MegatronWriter(tmp_path / "x", vocab_size=10) as writer:
        for length in (2, 3, 2):
            writer.append(np.zeros(length, dtype=np.uint16))
    out = tmp_path / "out"
    result = invoke("--input", tmp_path / "x.idx", "--output", out, "--max-seq-len", 4, "--format", "seqpack")
    assert result.exit_code == 0, result.output
    assert seqpack.prepare.load_prepared(out)[1] == {2: 2, 3: 1}
    assert "seqpack.load_prepared" in result.output


def test_errors_propagate_and_overwrite_allows(table: Path, tmp_path: Path) -> None:
    arguments = ("--input", table, "--output", tmp_path / "out", "--length-column", "n", "--max-seq-len", 100)
    assert invoke(*arguments).exit_code == 0
    assert isinstance(invoke(*arguments).exception, FileExistsError)
    assert invoke(*arguments, "--overwrite").exit_code == 0
    assert isinstance(invoke(*arguments[:-1], 5, "--overwrite").exception, ValueError)
    assert open_prepared(tmp_path / "out").manifest.max_seq_len == 100
    assert invoke(*arguments, "--over-length", "clip").exit_code == 2


@pytest.mark.parametrize("cut_off", [False, True])
def test_a_plan_that_the_clock_cut_off_says_so(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut_off: bool
) -> None:
    inspect = pytest.importorskip("packhorse.analysis.commands.inspect")
    plan = _sort.pack_histogram

    def plan_until_time_is_up(*arguments: Any, **options: Any) -> Any:
        return replace(plan(*arguments, **options), cut_off=cut_off)

    monkeypatch.setattr(_sort, "pack_histogram", plan_until_time_is_up)
    result = invoke("--input", table, "--output", tmp_path / "set", "--length-column", "n", "--max-seq-len", 100)
    assert result.exit_code == 0, result.output
    assert open_prepared(tmp_path / "set").manifest.plan_cut_off is cut_off
    inspected = CliRunner().invoke(inspect.command, [str(tmp_path / "set")], catch_exceptions=False)
    assert "ids: uint32, row numbers of x.parquet" in inspected.output
    for shown in (result.output, inspected.output):
        for words in ("cut off", "whose digest refuses cursors", "--algorithm best-fit", "--time-limit-seconds"):
            assert (words in shown) is cut_off


def test_the_screen_and_the_wire_say_where_ids_come_from(table: Path, tmp_path: Path) -> None:
    inspect = pytest.importorskip("packhorse.analysis.commands.inspect")
    flags = ("--length-column", "n", "--id-column", "id", "--max-seq-len", 100)
    assert invoke("--input", table, "--output", tmp_path / "set", *flags).exit_code == 0
    inspected = CliRunner().invoke(inspect.command, [str(tmp_path / "set")], catch_exceptions=False)
    assert "ids: uint32, column 'id' of x.parquet" in inspected.output
    backend = Backend(Mixtures(Catalog(tmp_path)))
    described = backend.get_dataset(pb.GetDatasetRequest(name="set")).dataset
    assert (described.id_column, described.plan_cut_off) == ("id", False)
    manifest = open_prepared(tmp_path / "set").manifest
    assert (described.source, described.own_tokens) == ("x.parquet", manifest.own_tokens)
    assert described.over_length_tokens == described.over_length_sequences == 0
    request = pb.StreamBinsRequest(dataset="set", topology=topology_message(Topology()))
    assert next(iter(backend.stream_bins(request))).header.id_column == "id"


def test_tokens_that_rooms_add_are_shown_apart(table: Path, tmp_path: Path) -> None:
    inspect = pytest.importorskip("packhorse.analysis.commands.inspect")
    flags = ("--input", table, "--length-column", "n", "--max-seq-len", 200)
    assert "real tokens" not in invoke(*flags, "--output", tmp_path / "plain").output
    result = invoke(*flags, "--output", tmp_path / "roomy", "--align", 8, "--extra-tokens", 2)
    manifest = open_prepared(tmp_path / "roomy").manifest
    real = f"{manifest.own_tokens / manifest.total_capacity:.2%} of capacity"
    assert manifest.own_tokens < manifest.total_tokens
    inspected = CliRunner().invoke(inspect.command, [str(tmp_path / "roomy")], catch_exceptions=False)
    assert f"real tokens  {real}" in result.output
    assert f"real tokens: {real}" in inspected.output


def test_what_it_does_not_use_is_not_imported(table: Path, tmp_path: Path) -> None:
    """Importing is most of what a small dataset takes."""
    arguments = [
        "prepare",
        "--input",
        table,
        "--length-column",
        "n",
        "--max-seq-len",
        100,
        "--output",
        tmp_path / "out",
    ]
    script = f"""
import sys
from packhorse.cli import main
main({[str(argument) for argument in arguments]}, standalone_mode=False)
assert not {{"pandas", "grpc", "packhorse.client", "ray", "rich"}} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
