"""Signals end `prepare` at once: one line, the shell's exit status, no half-made dataset, no process left.

What is finished stays in a hidden work folder, from which `--resume` goes on.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests import commands
from tests.flat_words import prepare
from tests.prepare.slow_prepare import CODE
from tests.waiting import wait_until, wait_until_busy
from tests.warm import Forked

from packhorse.dataset import open_prepared

ROWS = 2_000
END_SECONDS = 60  # a bound that catches hangs, no promise
STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


def written(path: Path, rows: int) -> Path:
    """A table of lengths and ids, in 20 row groups."""
    rng = np.random.default_rng(5)
    lengths = np.clip(rng.lognormal(7.5, 0.8, rows).astype(int), 1, 8192)
    pq.write_table(pa.table({"n": lengths, "id": rng.permutation(rows)}), path, row_group_size=rows // 20)
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("rows") / "x.parquet", ROWS)


@pytest.fixture(scope="module")
def hard_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lengths whose plan can be improved for minutes."""
    return written(tmp_path_factory.mktemp("hard") / "x.parquet", 8_000)


@contextmanager
def running(step: str, table: Path, output: Path, *flags: str) -> Iterator[tuple[Forked, list[int]]]:
    """A prepare inside a certain step, in a process group of its own; and the processes that are in that step."""
    arguments = ["prepare", "--input", str(table), "--length-column", "n", "--id-column", "id", *flags]
    arguments += ["--max-seq-len", "8192", "--output", str(output)]
    arguments += ["--algorithm", "optimal" if step == "plan" else "best-fit"]
    with commands.running(*arguments, code=CODE, SLOW_STEP=step) as process:
        wait_until(lambda: "\n" in process.out() or process.poll() is not None, END_SECONDS)
        assert process.out().startswith("RUNNING "), process.err()
        yield process, [process.pid, int(process.out().split()[1])]


def said(errors: str) -> list[str]:
    """Lines but those of progress, which a slow machine has some of."""
    return [line for line in errors.splitlines() if not line.startswith(("counting lengths:", "writing sorted files:"))]


def stops(process: Forked, number: signal.Signals) -> None:
    assert process.wait(END_SECONDS) == STATUS[number], process.err()
    line = f"Stopped by {number.name}: no incomplete dataset is left; the same command with --resume continues"
    assert said(process.err()) == [line]


def holds_only_work(folder: Path) -> bool:
    return [path.name for path in folder.iterdir()] == [".set.work"] and not (folder / ".set.work/output").exists()


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("step", "number"),
    [
        ("count_task", signal.SIGINT),
        ("plan", signal.SIGINT),
        ("plan", signal.SIGTERM),
        ("write_spill", signal.SIGHUP),
        ("merge_task", signal.SIGTERM),
        ("find_duplicate", signal.SIGINT),
    ],
)
def test_a_signal_in_any_step_leaves_no_dataset_and_resume_makes_it(
    step: str, number: signal.Signals, table: Path, hard_table: Path, tmp_path: Path
) -> None:
    with running(step, hard_table if step == "plan" else table, tmp_path / "set") as (process, _):
        if step == "plan":
            wait_until_busy(process.pid)  # into the search for a better plan
        process.send_signal(number)
        stops(process, number)
    assert holds_only_work(tmp_path)
    if step == "plan":
        return  # planning again would take minutes
    options: dict[str, Any] = {"length_column": "n", "id_column": "id", "max_seq_len": 8192, "algorithm": "best-fit"}
    prepare(table, output=tmp_path / "set", resume=True, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
    assert open_prepared(tmp_path / "set").manifest.num_sequences == ROWS


@pytest.mark.parametrize(
    ("step", "number", "whom"),
    [
        ("count_task", signal.SIGINT, os.killpg),  # as a terminal does
        pytest.param("count_task", signal.SIGTERM, os.killpg, marks=pytest.mark.long),
        pytest.param("write_spill", signal.SIGINT, os.kill, marks=pytest.mark.long),
        ("write_spill", signal.SIGTERM, os.kill),
    ],
)
def test_worker_processes_end_too(
    step: str,
    number: signal.Signals,
    whom: Callable[[int, int], None],
    table: Path,
    tmp_path: Path,
) -> None:
    with running(step, table, tmp_path / "set", "--engine", "processes", "--workers", "2") as (process, pids):
        assert len(set(pids)) == 2
        whom(process.pid, number)
        stops(process, number)
        wait_until(lambda: not any(map(alive, pids)), END_SECONDS)
    assert holds_only_work(tmp_path)


@pytest.mark.parametrize(("step", "number"), [("count_task", signal.SIGINT), ("write_spill", signal.SIGTERM)])
def test_threads_in_endless_tasks_do_not_keep_the_process(
    step: str, number: signal.Signals, table: Path, tmp_path: Path
) -> None:
    with running(step, table, tmp_path / "set", "--workers", "2") as (process, pids):
        assert pids == [process.pid] * 2
        process.send_signal(number)
        stops(process, number)
    assert holds_only_work(tmp_path)


def test_workers_end_when_their_parent_is_killed(table: Path, tmp_path: Path) -> None:
    with running("count_task", table, tmp_path / "set", "--engine", "processes", "--workers", "2") as (
        process,
        pids,
    ):
        process.send_signal(signal.SIGKILL)
        process.wait(END_SECONDS)
        wait_until(lambda: not any(map(alive, pids)), END_SECONDS)


def test_a_worker_that_dies_ends_prepare_and_what_is_finished_stays(table: Path, tmp_path: Path) -> None:
    """As the system does where memory runs out."""
    with running("write_spill", table, tmp_path / "set", "--engine", "processes", "--workers", "2") as (
        process,
        pids,
    ):
        os.kill(pids[1], signal.SIGKILL)
        assert process.wait(END_SECONDS) == 1
        errors = process.err()
    assert "a worker process died before its task was done (out of memory" in errors
    assert "--resume" in errors
    assert holds_only_work(tmp_path)
    assert len(list((tmp_path / ".set.work" / "counts").iterdir())) >= 1


def test_a_second_signal_changes_nothing(table: Path, tmp_path: Path) -> None:
    with running("write_spill", table, tmp_path / "set", "--engine", "processes", "--workers", "2") as (
        process,
        _,
    ):
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_SECONDS) in (130, 143), process.err()
        assert len(said(process.err())) == 1
    assert holds_only_work(tmp_path)


def test_an_old_dataset_survives(table: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"length_column": "n", "id_column": "id", "max_seq_len": 8192, "algorithm": "best-fit"}
    prepare(table, output=tmp_path / "set", **options)
    before = {path.name: path.read_bytes() for path in (tmp_path / "set").iterdir()}
    with running("merge_task", table, tmp_path / "set", "--overwrite") as (process, _):
        process.send_signal(signal.SIGTERM)
        stops(process, signal.SIGTERM)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".set.work", "set"]
    assert {path.name: path.read_bytes() for path in (tmp_path / "set").iterdir()} == before
