"""Engines run tasks in threads or processes, in order; they end, and leave the program's script alone."""

import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from packhorse.jobs import engines, open_engine

threads = partial(open_engine, 2, "threads")

_SCRIPT = """
print("imported")
from packhorse.jobs import open_engine
with open_engine(2) as engine:
    print(list(engine.map(abs, [-3, 2, -1])))
import __main__
print(__main__.__file__ == __file__)
"""


def test_workers_do_not_run_the_script_that_starts_them(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert ran.stderr == ""
    assert ran.stdout.splitlines() == ["imported", "[3, 2, 1]", "True"]


def test_a_task_that_fails_raises_here_what_it_raised_there() -> None:
    with open_engine(2) as engine, pytest.raises(ValueError, match="invalid literal for int"):
        list(engine.map(int, ["1", "one"]))


def test_results_come_in_order_and_tasks_begin_before_they_are_asked_for() -> None:
    both_run = threading.Barrier(2)

    def meets(task: int) -> int:
        both_run.wait(60)
        return task

    begun = threading.Event()
    with threads() as engine:
        assert list(engine.map(meets, [3, 1, 2, 0])) == [3, 1, 2, 0]  # two by two, or the barrier breaks
        results = engine.map(lambda _: begun.set(), [0])
        assert begun.wait(60)
        assert list(results) == [None]


def test_the_first_failure_in_order_is_raised() -> None:
    failed = threading.Event()

    def fails(task: int) -> None:
        if task == 0:
            assert failed.wait(60)
        failed.set()
        raise ValueError(f"task {task}")

    with (
        threads() as engine,
        pytest.raises(ValueError, match="task 0"),
    ):
        list(engine.map(fails, [0, 1]))


def test_the_end_waits_for_nothing_endless_and_lets_no_task_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_END_SECONDS", 0.01)
    begun: list[int] = []
    goes_on = threading.Event()

    def waits(task: int) -> None:
        begun.append(task)
        goes_on.wait(60)

    with threads() as engine:
        engine.map(waits, range(100))
    goes_on.set()
    for thread in engine._threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(begun) <= 2


def test_one_worker_is_no_thread() -> None:
    with open_engine(1, "threads") as engine:
        assert list(engine.map(lambda _: threading.current_thread(), [0])) == [threading.current_thread()]
