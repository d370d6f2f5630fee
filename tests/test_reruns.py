"""`make test` runs a failed test once more only where the test is marked as depending on real time."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FLAKY = """
from pathlib import Path
import pytest

@pytest.mark.{mark}
def test_passes_the_second_time():
    before = Path("before")
    was_there = before.exists()
    before.touch()
    assert was_there

@pytest.mark.{other}
def test_passes():
    pass
"""


def environment():
    """Ours, without what tells a make or a pytest that another one started it, and without plugins to import."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PYTEST", "MFLAGS"))}
    return ours | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def commands(target):
    """What a target has the shell do to run tests, here without workers, which take seconds to start."""
    dry = ["make", "--dry-run", target]
    lines = subprocess.run(dry, cwd=ROOT, capture_output=True, text=True, check=True, env=environment()).stdout
    found = [line for line in lines.replace("\\\n", "").splitlines() if "-m pytest" in line]
    here = [each.replace("-n 2 --dist loadfile", "-p no:xdist") for each in found]
    return "set -e\n" + "\n".join(each.replace(".venv/bin/python", sys.executable) for each in here)


@pytest.mark.parametrize(("mark", "other", "passes"), [("realtime", "plain", True), ("plain", "realtime", False)])
def test_only_what_depends_on_real_time_is_run_again(tmp_path, mark, other, passes):
    marks = "\n".join(f"  {name}: mark" for name in ("realtime", "plain", "long", "benchmark"))
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers =\n{marks}\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_flaky.py").write_text(FLAKY.format(mark=mark, other=other))
    shell = ["sh", "-c", commands("test")]
    done = subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True, timeout=100, env=environment())
    assert (done.returncode == 0) is passes, done.stdout
    assert len(re.findall("1 failed", done.stdout)) == 1


def test_long_tests_are_run_in_the_same_way():
    assert commands("test-long") == commands("test").replace("not benchmark and not long", "long")
