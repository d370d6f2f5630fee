"""Interrupted work goes on from what is finished, or is refused with what differs; two writers are kept apart."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests import commands
from tests.flat_words import prepare
from tests.prepare.slow_prepare import CODE
from tests.waiting import wait_until

from packhorse.dataset import open_prepared
from packhorse.dataset.output import replacing
from packhorse.prepare import _merging, _sort, counting
from packhorse.storage import read_record, write_record

ROWS = 2000
OPTIONS: dict[str, Any] = {
    "length_column": "n",
    "id_column": "id",
    "max_seq_len": 64,
    "over_length": "split",
    "progress": False,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`in` with two files of 20 row groups, and `whole`, prepared from them at once; tasks of 100 rows."""
    monkeypatch.setattr(counting, "_TASK_ROWS", 100)
    rng = np.random.default_rng(3)
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        columns = {"n": rng.integers(1, 90, ROWS // 2), "id": rng.permutation(ROWS // 2) * 2 + (name == "b")}
        pq.write_table(pa.table(columns), tmp_path / "in" / f"{name}.parquet", row_group_size=100)
    prepare(tmp_path / "in", output=tmp_path / "whole", **OPTIONS)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Stopped(BaseException):
    pass


def stopping(monkeypatch: pytest.MonkeyPatch, function: str, after: int) -> list[Any]:
    """Lets a pass stop after so many tasks; returns what it is called with."""
    called: list[Any] = []
    before: Callable[[Any], Any] = getattr(_sort, function)

    def counted(task: Any) -> Any:
        if len(called) == after:
            raise Stopped
        called.append(task)
        return before(task)

    monkeypatch.setattr(_sort, function, counted)
    return called


def interrupt(folder: Path, monkeypatch: pytest.MonkeyPatch, function: str, after: int, **options: Any) -> None:
    with monkeypatch.context() as patch:
        stopping(patch, function, after)
        with pytest.raises(Stopped):
            prepare(folder / "in", output=folder / "out", **{**OPTIONS, **options})
    assert not (folder / "out").exists()
    assert (folder / ".out.work").is_dir()


@pytest.mark.parametrize(("function", "finished"), [("count_task", 7), ("write_spill", 13)])
def test_finished_tasks_are_not_done_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, function: str, finished: int
) -> None:
    interrupt(folder, monkeypatch, function, finished)
    interrupt(folder, monkeypatch, function, 2, resume=True)
    called = {name: stopping(monkeypatch, name, 10**9) for name in ("count_task", "write_spill")}
    prepare(folder / "in", output=folder / "out", resume=True, **OPTIONS)
    assert len(called[function]) == 20 - finished - 2
    assert len(called["count_task" if function == "write_spill" else "write_spill"]) == (
        0 if function == "write_spill" else 20
    )
    assert contents(folder / "out") == contents(folder / "whole")
    assert not (folder / ".out.work").exists()


@pytest.mark.parametrize("function", ["pack_histogram", "merge_task", "find_duplicate", "seal"])
def test_later_steps_begin_again_with_every_run_at_hand(
    folder: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(_sort, function, lambda *arguments, **options: (_ for _ in ()).throw(Stopped()))
        with pytest.raises(Stopped):
            prepare(folder / "in", output=folder / "out", **OPTIONS)
    called = stopping(monkeypatch, "write_spill", 10**9)
    if function != "pack_histogram":  # a plan may take minutes, and is kept
        monkeypatch.delattr(_sort, "pack_histogram")
    prepare(folder / "in", output=folder / "out", resume=True, **OPTIONS)
    assert len(called) == (20 if function == "pack_histogram" else 0)
    assert contents(folder / "out") == contents(folder / "whole")


def test_merged_ranges_are_kept_but_those_that_were_damaged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_merging, "PAGE_BYTES", 512)
    every = stopping(monkeypatch, "merge_task", 10**9)
    prepare(folder / "in", output=folder / "pages", **OPTIONS)
    num_tasks = len(every)
    assert contents(folder / "pages") == contents(folder / "whole")
    interrupt(folder, monkeypatch, "merge_task", 7)
    pool = folder / ".out.work" / "spills" / "pools.npy"
    content = bytearray(pool.read_bytes())
    content[600] ^= 1  # of the second range
    pool.write_bytes(content)
    called = stopping(monkeypatch, "merge_task", 10**9)
    prepare(folder / "in", output=folder / "out", resume=True, workers=2, **OPTIONS)
    assert len(called) == num_tasks - 7 + 1
    assert contents(folder / "out") == contents(folder / "whole")


@pytest.mark.parametrize("function", ["find_duplicate", "seal"])
def test_arrays_that_lost_their_size_are_merged_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """As after the machine went down; and `seal` has them in the folder already, which an interrupted call leaves."""
    with monkeypatch.context() as patch:
        patch.setattr(_sort, function, lambda *arguments, **options: (_ for _ in ()).throw(Stopped()))
        with pytest.raises(Stopped):
            prepare(folder / "in", output=folder / "out", **OPTIONS)
    pool = folder / ".out.work" / "spills" / "pools.npy"
    assert pool.exists() == (function == "find_duplicate")
    if pool.exists():
        os.truncate(pool, 200)
    prepare(folder / "in", output=folder / "out", resume=True, **OPTIONS)
    assert contents(folder / "out") == contents(folder / "whole")


def test_without_resume_all_is_done_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(folder, monkeypatch, "write_spill", 5)
    called = stopping(monkeypatch, "count_task", 10**9)
    prepare(folder / "in", output=folder / "out", **OPTIONS)
    assert len(called) == 20
    assert contents(folder / "out") == contents(folder / "whole")


def test_work_goes_on_with_another_number_of_workers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(folder, monkeypatch, "write_spill", 5)
    monkeypatch.setattr(counting, "_TASK_ROWS", 300)  # what a new job would choose
    prepare(folder / "in", output=folder / "out", resume=True, workers=2, **OPTIONS)
    assert contents(folder / "out") == contents(folder / "whole")


def test_what_was_damaged_meanwhile_is_done_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after the machine went down: records that are cut, and runs whose pages never reached the disk."""
    interrupt(folder, monkeypatch, "write_spill", 8)
    work = folder / ".out.work"
    ids = work / "spills" / "000002.ids.npy"
    ids.write_bytes(ids.read_bytes()[:128] + bytes(ids.stat().st_size - 128))
    (work / "spills" / "000003.ids.npy").unlink()
    os.truncate(work / "spills" / "000004.first_tokens.npy", 130)
    os.truncate(work / "filled" / "000005", 10)
    os.truncate(work / "counts" / "000006", 0)
    called = stopping(monkeypatch, "write_spill", 10**9)
    counted = stopping(monkeypatch, "count_task", 10**9)
    prepare(folder / "in", output=folder / "out", resume=True, **OPTIONS)
    assert len(counted) == 1
    assert len(called) == 20 - 8 + 4
    assert contents(folder / "out") == contents(folder / "whole")


def _touched(folder: Path) -> None:
    os.utime(folder / "in" / "b.parquet", ns=(1, 1))


def _one_more(folder: Path) -> None:
    shutil.copy(folder / "in" / "a.parquet", folder / "in" / "c.parquet")


def _one_less(folder: Path) -> None:
    (folder / "in" / "a.parquet").unlink()


@pytest.mark.parametrize(
    ("options", "change", "said"),
    [
        ({"max_seq_len": 80}, None, r"max_seq_len was 64 and is 80"),
        ({"id_column": None, "over_length": "drop"}, None, r"over_length was split and is drop; id_column was id"),
        ({"on_bad_row": "skip"}, None, r"on_bad_row was error and is skip"),
        ({}, _touched, r"b\.parquet changed since"),
        ({}, _one_more, r"c\.parquet was not read then"),
        ({}, _one_less, r"a\.parquet is not read any more"),
    ],
)
def test_other_input_or_options_are_refused_and_the_work_stays(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    change: Callable[[Path], None] | None,
    said: str,
) -> None:
    interrupt(folder, monkeypatch, "write_spill", 5)
    before = sorted(path.name for path in (folder / ".out.work").rglob("*"))
    if change:
        change(folder)
    with pytest.raises(
        ValueError, match=rf"resume cannot continue the work of an interrupted call: .*{said}.*leave out resume=True"
    ):
        prepare(folder / "in", output=folder / "out", resume=True, **{**OPTIONS, **options})
    assert sorted(path.name for path in (folder / ".out.work").rglob("*")) == before


def test_work_of_another_release_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(folder, monkeypatch, "write_spill", 5)
    begun = read_record(folder / ".out.work" / "job")
    write_record(folder / ".out.work" / "job", {"release": "0.0.1", "options_then": begun["options"]})
    with pytest.raises(ValueError, match=r"begun by release 0\.0\.1, and this is .*leave out resume=True"):
        prepare(folder / "in", output=folder / "out", resume=True, **OPTIONS)


def test_a_signal_when_all_is_done_leaves_no_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = replacing.sync

    def stopped_at_the_end(path: Path) -> None:
        sync(path)
        if path == folder:
            raise Stopped

    monkeypatch.setattr(replacing, "sync", stopped_at_the_end)
    with pytest.raises(Stopped):
        prepare(folder / "in", output=folder / "out", **OPTIONS)
    assert contents(folder / "out") == contents(folder / "whole")
    assert not (folder / ".out.work").exists()


def test_lengths_that_python_holds_cannot_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="resume needs files"):
        prepare(lengths=[3, 4], max_seq_len=8, output=tmp_path / "out", resume=True)
    stopping(monkeypatch, "write_spill", 0)
    with pytest.raises(Stopped):
        prepare(lengths=[3, 4], max_seq_len=8, output=tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_refused_input_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(folder, monkeypatch, "write_spill", 5)
    with pytest.raises(ValueError, match="over max_seq_len"):
        prepare(folder / "in", output=folder / "out", **{**OPTIONS, "over_length": "error"})
    assert not (folder / ".out.work").exists()


def test_a_killed_prepare_is_resumed(folder: Path) -> None:
    """SIGKILL, which nothing can clean up after."""
    command = ["prepare", "--input", str(folder / "in"), "--length-column", "n", "--id-column", "id"]
    command += ["--max-seq-len", "64", "--over-length", "split", "--output", str(folder / "out")]
    with commands.running(*command, code=CODE, SLOW_STEP="merge_task") as process:
        wait_until(lambda: process.out().startswith("RUNNING ") or process.poll() is not None, 60)
        with pytest.raises(
            BlockingIOError, match=rf"out is being prepared already, by process {process.pid} on .* since 2"
        ):
            prepare(folder / "in", output=folder / "out", resume=True, **OPTIONS)
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL, process.err()
    assert (folder / ".out.work" / "spills" / "pools.npy").exists()
    prepare(folder / "in", output=folder / "out", resume=True, **OPTIONS)
    assert contents(folder / "out") == contents(folder / "whole")
    assert sorted(path.name for path in folder.iterdir()) == ["in", "out", "whole"]


def test_two_writers_of_one_output_are_kept_apart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    plan = _sort.pack_histogram

    def prepared_by_another(*arguments: Any, **options: Any) -> Any:
        with pytest.raises(BlockingIOError) as caught:
            prepare(folder / "in", output=folder / "out", **OPTIONS)
        said.append(str(caught.value))
        prepare(folder / "in" / "a.parquet", output=folder / "other", **OPTIONS)
        return plan(*arguments, **options)

    monkeypatch.setattr(_sort, "pack_histogram", lambda *a, **o: (prepared_by_another if not said else plan)(*a, **o))
    prepare(folder / "in", output=folder / "out", **OPTIONS)
    assert f"by process {os.getpid()} on " in said[0]
    assert "another output" in said[0]
    assert contents(folder / "out") == contents(folder / "whole")
    open_prepared(folder / "other")
