"""Compiling ahead: plain forms run until the compiled ones are there, and nobody waits; processes without Numba."""

import subprocess
import sys

import pytest
from tests import commands

MODULE = """
import logging
import sys
import threading
import time
import numpy as np
from packhorse.compiling import kernel_or

RAN = []

def _doubled(numbers):
    RAN.append("plain")
    return int(2 * numbers.sum())

@kernel_or(_doubled)
def doubled(numbers):
    total = 0
    for number in numbers:
        total += 2 * number
    return total

@kernel_or()
def wrapped(number):
    return number * np.uint32(2)

def compile_all():
    doubled(np.arange(3))
    wrapped(np.uint32(1))

if __name__ == "__main__":
    from packhorse.compiling.ahead import end_with_parent
    end_with_parent()
    {in_child}
    compile_all()
"""

ASKED = """
import logging
import time
import numpy as np
import numba.core.event
from packhorse.compiling import ahead
import doubling

logging.basicConfig(level=logging.INFO)
compiled = []
class Listener(numba.core.event.Listener):
    def on_start(self, event): compiled.append(event.data["dispatcher"].py_func.__name__)
    def on_end(self, event): pass
numba.core.event.register("numba:compile", Listener())
ahead.compile_ahead(doubling.compile_all, ["-m", "doubling"], at_once={at_once})
print(doubling.doubled(np.arange(4)), doubling.RAN)
ends = time.monotonic() + 100
while {waits} and (ahead._kernels.thread is None or ahead._kernels.thread.is_alive()) and time.monotonic() < ends:
    doubling.doubled(np.arange(5))
    time.sleep(0.02)
doubling.RAN.clear()
print(doubling.doubled(np.arange(4)), doubling.RAN, compiled)
"""


@pytest.fixture
def run(tmp_path):
    """Runs a script beside a module with two kernels, with a cache of its own."""

    def run(script, *, in_child="pass", **variables):
        (tmp_path / "doubling.py").write_text(MODULE.format(in_child=in_child))
        cache = str(tmp_path / "cache")
        begin = f"import sys, numba; numba.config.CACHE_DIR = {cache!r}; sys.path.insert(0, '')\n"
        done = commands.run(code=begin + script, folder=tmp_path, timeout=250, NUMBA_CACHE_DIR=cache, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines(), done.stderr

    return run


@pytest.mark.parametrize("at_once", [True, False])
def test_a_request_runs_plain_until_a_child_has_compiled(run, at_once):
    script = ASKED.format(at_once=at_once, waits=True)
    lines, log = run(script)
    assert lines == ["12 ['plain']", "12 [] []"]
    assert log.count("kernels are compiled, once after an install") == 1
    assert "all kernels are ready" in log
    lines, log = run(ASKED.format(at_once=at_once, waits=False))
    assert lines == ["12 []", "12 [] []"], "what an earlier process compiled is used at once"
    assert log == ""


def test_a_child_that_never_ends_makes_nobody_wait(run):
    lines, _ = run(ASKED.format(at_once=True, waits=False), in_child="time.sleep(1000)")
    assert lines == ["12 ['plain']", "12 ['plain'] []"]


def test_a_child_that_fails_ends_nobody(run):
    lines, log = run(ASKED.format(at_once=True, waits=True), in_child="raise SystemExit('no memory')")
    assert lines == ["12 ['plain']", "12 [] ['doubled', 'wrapped']"], "then it is compiled here"
    assert "no memory" in log


def test_a_forked_process_starts_anew(run):
    """It has none of its parent's threads, and no lock that one of them held."""
    script = ASKED.format(at_once=True, waits=False).replace(
        "ends = ",
        "import os\n"
        "if (pid := os.fork()) == 0:\n"
        "    print(doubling.doubled(np.arange(5)), doubling.RAN, flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\nends = ",
    )
    lines, _ = run(script.replace("print(doubling", "print(flush=True, *[doubling", 0), in_child="time.sleep(1000)")
    assert "20 ['plain', 'plain']" in lines


WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = sys.modules["llvmlite"] = None
"""
BINS = """
import numpy as np
from packhorse.epoch import Assignment, EpochView, PlanIndex, WindowedView
from packhorse.packing import pack_sequences
plan = PlanIndex.build({(3, 2): 4, (2,): 1}, {3: 4, 2: 5}, 5)
view = EpochView(plan, np.arange(9, dtype=np.uint32), seed=1, epoch=0)
print(view.bins(range(5)).ids.tolist())
print(view.locate([7]).positions.tolist(), pack_sequences([3, 2, 2], 5, seed=1).bins())
"""


def test_without_numba_the_same_bins_come():
    command = [sys.executable, "-c", WITHOUT_NUMBA + BINS]
    without = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert without.returncode == 0, without.stderr
    assert without.stderr.count("Numba is not installed") == 1
    compiled = commands.run(code=BINS)
    assert compiled.returncode == 0, compiled.stderr
    assert without.stdout == compiled.stdout
