"""Engines run tasks in processes of their own, in order, and leave the program's script alone."""

import subprocess
import sys
from pathlib import Path

import pytest

from packhorse.jobs import open_engine

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
