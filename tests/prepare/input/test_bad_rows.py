"""Bad input: rows that cannot be planned, files that cannot be read, files that change; refused by name, or skipped."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tests.flat_words import dry_run, prepare

from packhorse.cli.prepare import command
from packhorse.dataset import PreparedDatasetError, open_prepared
from packhorse.formats import write_flat_tokens
from packhorse.prepare import _sort, load_prepared
from packhorse.prepare.input import _arrow_rows, parquet


def run(source: Any, output: Path, **options: Any) -> dict[int, list[int]]:
    """Length → ids."""
    prepare(source, **{"length_column": "n", "max_seq_len": 16, "output": output, "progress": False, **options})
    return {length: ids.tolist() for length, ids in load_prepared(output)[3].items()}


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    """a.parquet (sound) and b.parquet, in row groups of two, with a bad row of every kind."""
    ids = [10, 20, None, 2**64 - 1, 50, 60, 70, 80]
    lengths = [4, None, 4, 5, 0, 6, 2**64 - 1, 7]
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"n": [1, 2, 3], "id": [1, 2, 3]}), tmp_path / "in" / "a.parquet")
    table = pa.table({"n": pa.array(lengths, pa.uint64()), "id": pa.array(ids, pa.uint64())})
    pq.write_table(table, tmp_path / "in" / "b.parquet", row_group_size=2)
    return tmp_path / "in"


def test_a_bad_row_is_named_with_its_file_and_row_group(bad: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"b\.parquet: row 1, column 'n' is null \(row group 0\).*on_bad_row='skip'"):
        run(bad, tmp_path / "out")
    table = pq.read_table(bad / "b.parquet")
    for rows, said in (
        ([0, 5, 4], r"row 2, column 'n' is 0 \(row group 1\); a sequence has at least 1 token"),
        ([0, 5, 6], rf"row 2, column 'n' is {2**64 - 1} \(row group 1\), which int64 cannot hold"),
        ([0, 2], r"row 1, column 'id' is null \(row group 0\)"),
        ([0, 5, 7, 3], rf"row 3, column 'id' is {2**64 - 1} \(row group 1\)"),
    ):
        pq.write_table(table.take(rows), bad / "b.parquet", row_group_size=2)
        with pytest.raises(ValueError, match=rf"b\.parquet: {said}"):
            run(bad, tmp_path / "out", id_column="id")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("is_parquet", [True, False])
def test_an_empty_list_is_called_one(tmp_path: Path, is_parquet: bool) -> None:
    table, path = pa.table({"tokens": [[1, 2], [], [3]]}), tmp_path / "lists"
    if is_parquet:
        pq.write_table(table, path.with_suffix(".parquet"))
    else:
        with pa.ipc.new_file(path.with_suffix(".arrow"), table.schema) as writer:
            writer.write_table(table)
    said = r"row 1, column 'tokens' is an empty list( \(row group 0\))?; a sequence has at least 1 token"
    with pytest.raises(ValueError, match=said):
        run(next(tmp_path.glob("lists.*")), tmp_path / "out", length_column=None)


def test_tokens_are_taken_where_lengths_stand_beside_them_unless_those_are_named(tmp_path: Path) -> None:
    inspect = pytest.importorskip("packhorse.analysis.commands.inspect")
    pq.write_table(pa.table({"length": [7, 8], "tokens": [[1, 2], [3]]}), tmp_path / "both.parquet")
    assert run(tmp_path / "both.parquet", tmp_path / "tokens", length_column=None) == {2: [0], 1: [1]}
    assert run(tmp_path / "both.parquet", tmp_path / "lengths", length_column="length") == {7: [0], 8: [1]}
    flags = ["--input", str(tmp_path / "both.parquet"), "--max-seq-len=8", "--output", str(tmp_path / "told")]
    for more in (["--dry-run"], []):
        told = CliRunner().invoke(command, flags + more).output
        assert "read         Parquet, 2 rows, column 'tokens'\n" in told
    for output, column in (("tokens", "tokens"), ("lengths", "length")):
        assert f"column '{column}'" in CliRunner().invoke(inspect.command, [str(tmp_path / output)]).output


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_skipped_rows_are_in_the_manifest_and_keep_their_numbers(bad: Path, tmp_path: Path, workers: int) -> None:
    numbered = run(bad, tmp_path / "rows", on_bad_row="skip", workers=workers)
    assert numbered == {1: [0], 2: [1], 3: [2], 4: [3, 5], 5: [6], 6: [8], 7: [10]}
    named = run(bad, tmp_path / "named", on_bad_row="skip", id_column="id", workers=workers)
    assert named == {1: [1], 2: [2], 3: [3], 4: [10], 6: [60], 7: [80]}
    inputs = open_prepared(tmp_path / "named").manifest.inputs
    assert inputs is not None
    assert inputs.skipped.rows == 5
    assert [(row.file, row.row, row.reason) for row in inputs.skipped.first] == [
        ("b.parquet", 1, "the length is null"),
        ("b.parquet", 2, "the id is null"),
        ("b.parquet", 3, "the id is beyond int64"),
        ("b.parquet", 4, "the length is below 1 token"),
        ("b.parquet", 6, "the length is beyond int64"),
    ]
    assert inputs.skipped.by_reason == dict(sorted((row.reason, 1) for row in inputs.skipped.first))
    assert inputs.rows == 11


def test_the_command_line_tells_of_skipped_rows(bad: Path, tmp_path: Path) -> None:
    inspect = pytest.importorskip("packhorse.analysis.commands.inspect")
    flags = ["--input", bad, "--length-column", "n", "--max-seq-len", 16, "--output", tmp_path / "set"]
    result = CliRunner().invoke(command, [*map(str, flags), "--on-bad-row", "skip"], catch_exceptions=False)
    reasons = "where the length is below 1 token, 1 where the length is beyond int64, 1 where the length is null"
    assert f"skipped      3 rows, 1 {reasons}; the first is row 1 of b.parquet" in result.output
    inspected = CliRunner().invoke(inspect.command, [str(tmp_path / "set")], catch_exceptions=False)
    assert "read: Parquet, column 'n', 11 rows, 2 files of" in inspected.output
    assert f"skipped: 3 rows, 1 {reasons}; manifest.json" in inspected.output


def test_many_files_and_many_skipped_rows_are_in_files_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(130):
        pq.write_table(pa.table({"n": [1 + number % 5, 0]}), tmp_path / "in" / f"{number:03}.parquet")
    run(tmp_path / "in", tmp_path / "out", on_bad_row="skip")
    inputs = open_prepared(tmp_path / "out").manifest.inputs
    assert inputs is not None
    assert (inputs.num_files, len(inputs.files), inputs.skipped.rows, len(inputs.skipped.first)) == (130, 100, 130, 100)
    listed = [json.loads(line) for line in (tmp_path / "out" / "inputs.jsonl").read_text().splitlines()]
    stat = (tmp_path / "in" / "129.parquet").stat()
    assert listed[129] == {
        "name": "129.parquet",
        "size_bytes": stat.st_size,
        "etag": None,
        "modified_ns": stat.st_mtime_ns,
        "rows": 2,
    }
    skipped = [json.loads(line) for line in (tmp_path / "out" / "skipped.jsonl").read_text().splitlines()]
    assert skipped[129] == {"file": "129.parquet", "row": 1, "reason": "the length is below 1 token"}
    run(tmp_path / "in", tmp_path / "out", on_bad_row="skip", overwrite=True)  # all of its files are ours
    (tmp_path / "out" / "skipped.jsonl").write_text("")
    with pytest.raises(PreparedDatasetError, match=r"skipped\.jsonl does not match its checksum"):
        open_prepared(tmp_path / "out")


def test_nothing_but_bad_rows_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [0, -1]}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="all 2 rows are bad"):
        run(tmp_path / "x.parquet", tmp_path / "out", on_bad_row="skip")
    with pytest.raises(ValueError, match="on_bad_row must be one of error, skip, got 'ignore'"):
        run(tmp_path / "x.parquet", tmp_path / "out", on_bad_row="ignore")


def test_rows_skipped_by_kernels_and_policies_agree(tmp_path: Path) -> None:
    lengths = [5, 40, 0, 33, 2, None, 16]
    pq.write_table(pa.table({"n": lengths}), tmp_path / "x.parquet", row_group_size=2)
    assert run(tmp_path / "x.parquet", tmp_path / "a", on_bad_row="skip", over_length="drop") == {
        2: [4],
        5: [0],
        16: [6],
    }
    dataset = open_prepared(tmp_path / "a")
    assert dataset.over_length().tolist() == [[1, 40], [3, 33]]
    with pytest.raises(ValueError, match=r"sequence 1 \(row 1 of .*one of 2"):
        run(tmp_path / "x.parquet", tmp_path / "b", on_bad_row="skip")


def test_a_length_beyond_int32_is_too_long_and_said_to_be(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [5, 2**31 + 7]}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=rf"row 1 of .*x\.parquet\) has {2**31 + 7} tokens, over max_seq_len 16"):
        run(tmp_path / "x.parquet", tmp_path / "out")
    assert run(tmp_path / "x.parquet", tmp_path / "out", over_length="drop") == {5: [0]}
    assert open_prepared(tmp_path / "out").over_length().tolist() == [[1, 2**31 + 7]]


def test_a_parquet_file_that_is_cut_in_the_middle(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        lengths = np.random.default_rng(1).integers(1, 17, 50_000)
        pq.write_table(pa.table({"n": lengths}), tmp_path / "in" / f"{name}.parquet", row_group_size=9000)
    whole = (tmp_path / "in" / "b.parquet").read_bytes()
    cut = tmp_path / "in" / "b.parquet"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"b\.parquet cannot be read as a Parquet file"):
        run(tmp_path / "in", tmp_path / "out", on_bad_row="skip")
    cut.write_bytes(whole[: len(whole) // 2] + whole[len(whole) // 2 + 4000 :])  # footer and all, but pages are gone
    with pytest.raises(ValueError, match=r"b\.parquet cannot be read at row \d+ \(row group \d\)"):
        run(tmp_path / "in", tmp_path / "out", on_bad_row="skip")
    assert not (tmp_path / "out").exists()


def test_one_file_of_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a", "b", "c"):
        pq.write_table(pa.table({"n": [1]}), tmp_path / "in" / f"{name}.parquet")
    (tmp_path / "in" / "b.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(ValueError, match=r"b\.parquet cannot be read as a Parquet file"):
        run(tmp_path / "in", tmp_path / "out")
    (tmp_path / "in" / "b.parquet").unlink()
    (tmp_path / "in" / "b.parquet").symlink_to(tmp_path / "nowhere")  # left out, it would shift the rows behind it
    with pytest.raises(FileNotFoundError, match=r"b\.parquet is a link to a missing file"):
        run(tmp_path / "in", tmp_path / "out")
    (tmp_path / "in" / "b.parquet").unlink()
    pq.write_table(pa.table({"m": [1]}), tmp_path / "in" / "b.parquet")
    with pytest.raises(ValueError, match=r"b\.parquet has no column 'n'"):
        run(tmp_path / "in", tmp_path / "out")


def test_broken_files_of_other_kinds_are_named(tmp_path: Path) -> None:
    write_flat_tokens(tmp_path / "flat.bin", [[1, 2], [3]], np.uint16)
    (tmp_path / "flat.bin").write_bytes(b"\0\0")
    np.save(tmp_path / "x.npy", np.arange(1, 1000))
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:500])
    table = pa.table({"n": list(range(1, 1000))})
    for name, new in (("file.arrow", pa.ipc.new_file), ("stream.arrow", pa.ipc.new_stream)):
        with new(str(tmp_path / name), table.schema) as writer:
            writer.write_table(table, max_chunksize=100)
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:3000])
    for name in ("flat.bin", "x.npy", "file.arrow", "stream.arrow"):
        options = {"length_column": "n" if "arrow" in name else None}
        with pytest.raises(ValueError, match=rf"{name[:4]}.*(cannot be read|truncated)"):
            run(tmp_path / name, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("function", ["count_task", "write_spill"])
def test_a_file_that_changes_behind_a_pass_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """Changed when its own rows have been read already, and nothing reads it again in that pass."""
    for name in ("a", "b"):
        pq.write_table(pa.table({"n": [1, 2]}), tmp_path / f"{name}.parquet")
    before: Callable[[Any], Any] = getattr(_sort, function)

    def change_then_run(task: Any) -> Any:
        result = before(task)
        os.utime(tmp_path / "a.parquet", ns=(1, 1))
        return result

    monkeypatch.setattr(_sort, function, change_then_run)
    with pytest.raises(ValueError, match=r"a\.parquet changed while it was being prepared"):
        run(str(tmp_path / "*.parquet"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_dry_run_tells_everything_and_writes_nothing(bad: Path, tmp_path: Path) -> None:
    before = sorted(path for path in tmp_path.rglob("*"))
    options: dict[str, Any] = {"length_column": "n", "max_seq_len": 6, "progress": False}
    options |= {"on_bad_row": "skip", "over_length": "drop", "output": tmp_path / "deep" / "out"}
    found = dry_run(bad, **options)
    assert sorted(path for path in tmp_path.rglob("*")) == before
    manifest = prepare(bad, **options)
    assert (found.inputs, found.over_length, found.algorithm) == (
        manifest.inputs,
        manifest.over_length,
        manifest.algorithm,
    )
    assert (found.stats.n_bins, found.stats.efficiency) == (manifest.num_bins, manifest.efficiency)
    taken = sum(path.stat().st_size for path in (tmp_path / "deep" / "out").iterdir())
    assert 0.1 * found.disk_bytes < taken <= found.disk_bytes
    assert found.seconds > 0
    assert found.free_bytes > found.disk_bytes > found.work_bytes > 0
    with pytest.raises(FileExistsError, match="overwrite=True"):
        dry_run(bad, **options)
    with pytest.raises(TypeError, match="max_seq_length"):
        dry_run(bad, max_seq_len=3, output="out", max_seq_length=3)  # type: ignore[call-arg]


def test_a_dry_run_on_the_command_line(bad: Path, tmp_path: Path) -> None:
    flags = ["--input", bad / "a.parquet", "--length-column", "n", "--max-seq-len", 16, "--output", tmp_path / "set"]
    result = CliRunner().invoke(command, [*map(str, flags), "--dry-run"], catch_exceptions=False)
    for words in ("bins:", "efficiency:", "read         Parquet, 3 rows", "would take   about", "nothing was written"):
        assert words in result.output
    assert not (tmp_path / "set").exists()


def test_lists_are_decoded_in_batches_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"tokens": [[1] * 100] * 3000}), tmp_path / "x.parquet", use_dictionary=False)
    monkeypatch.setattr(parquet, "_BATCH_BYTES", 1 << 16)
    monkeypatch.setattr(parquet, "list_column", lambda file, column: None)  # as for lists that only pyarrow reads
    seen: list[int] = []
    rows_of = _arrow_rows.arrow_rows

    def watched(lengths: Any, ids: Any, is_list: bool) -> Any:
        seen.append(len(lengths))
        return rows_of(lengths, ids, is_list)

    monkeypatch.setattr(parquet, "arrow_rows", watched)
    assert run(tmp_path / "x.parquet", tmp_path / "out", length_column=None, max_seq_len=128) == {
        100: list(range(3000))
    }
    assert max(seen) <= 64
