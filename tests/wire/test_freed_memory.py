"""Freed memory stays with the process where glibc can be told so, and nothing happens elsewhere."""

import ctypes
import os
import subprocess
import sys

import pytest

from packhorse.wire import freed_memory, keep_freed_memory

VARIABLES = {
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "GLIBC_TUNABLES": "glibc.malloc.perturb=0",
}
ROUNDS = 20
MEGABYTES = """
import resource, sys
from packhorse.wire import keep_freed_memory
sys.stdout.write(f"{keep_freed_memory()} ")
for number in range(%d):
    if number == 2:  # the first rounds get the memory
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    kept = [b"x" * (1 << 20) for _ in range(4)]
    del kept
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.fixture
def plain_environment(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def is_glibc():
    return sys.platform == "linux" and "glibc" in os.confstr("CS_GNU_LIBC_VERSION")


@pytest.mark.skipif(not is_glibc(), reason="only glibc is set")
@pytest.mark.parametrize(("environment", "is_kept"), [({}, True), ({"MALLOC_TRIM_THRESHOLD_": "131072"}, False)])
def test_freed_blocks_are_not_fetched_anew_from_the_kernel(plain_environment, environment, is_kept):
    command = [sys.executable, "-c", MEGABYTES % ROUNDS]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment})
    was_set, num_faults = answer.stdout.split()
    assert was_set == str(is_kept)
    a_round = 4 * (1 << 20) // os.sysconf("SC_PAGE_SIZE")
    assert (int(num_faults) < a_round) == is_kept


@pytest.mark.parametrize("name", VARIABLES)
def test_what_the_environment_sets_stays(plain_environment, monkeypatch, name):
    monkeypatch.setenv(name, VARIABLES[name])
    monkeypatch.setattr(ctypes, "CDLL", lambda *_: pytest.fail("the allocator is left alone"))
    assert not keep_freed_memory()


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_other_c_libraries_are_left_alone(plain_environment, monkeypatch, error):
    def other(_):
        raise error

    monkeypatch.setattr(freed_memory.ctypes, "CDLL", other)
    assert not keep_freed_memory()
