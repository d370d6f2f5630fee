"""Kernels on disk: what is read, what is compiled again, and what a disk's errors do."""

import errno
import logging

import numba
import numba.core.caching
import numpy as np
import pytest
from tests import commands

from packhorse.compiling import caching, kernel
from packhorse.compiling.caching import NotCompiledError, cache_folder, only_from_cache

SOURCE = """
import sys
import numpy as np
from packhorse.compiling import kernel

@kernel
def total(numbers):
    total = numbers[0] - numbers[0]
    for number in numbers:
        total += number
    return total

for dtype in sys.argv[1:]:
    print(total(np.array([1.5, 2.5]).astype(dtype)))
"""


RUN = """
import runpy, sys
import numba
numba.config.CACHE_DIR = "cache"
sys.dont_write_bytecode = True  # Python itself may not see an edit within the same second
sys.path.insert(0, "")
runpy.run_path("sums.py", run_name="__main__")
"""


@pytest.fixture
def run(tmp_path):
    """Runs a kernel on numbers of some types, in a process of its own with a cache of its own."""
    module, cache = tmp_path / "sums.py", tmp_path / "cache"
    module.write_text(SOURCE)

    def run(*dtypes):
        done = commands.run(*dtypes, code=RUN, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    run.cache = cache
    return run


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """As if this process had warned of nothing, and no other had compiled."""
    monkeypatch.setattr(caching, "_warned", [])
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "own"))


def made():
    """A kernel that no process has compiled."""
    return kernel(lambda numbers: numbers.sum() + 1)


ONES = np.ones(3, np.int64)


def test_a_kernel_is_kept_on_disk(run):
    assert run("int64") == ["3"]
    (kept,) = run.cache.rglob("*.nbc")
    before = kept.stat().st_mtime_ns
    assert run("int64") == ["3"]
    assert kept.stat().st_mtime_ns == before


@pytest.mark.parametrize("edited", ["return 2 * number + EXTRA", "return number + EXTRA"])
def test_an_edit_of_what_a_kernel_calls_compiles_it_again(run, tmp_path, edited):
    """The called function is in a file of its own, two calls away."""
    part, extra = tmp_path / "parts.py", tmp_path / "extra.py"
    imports = "from packhorse.compiling import kernel_part\n"
    part.write_text(f"{imports}from extra import part\n@kernel_part\ndef called(number):\n    return part(number)\n")

    def run_with(expression, constant):
        extra.write_text(f"{imports}EXTRA = {constant}\n@kernel_part\ndef part(number):\n    {expression}\n")
        return run("int64")

    source = SOURCE.replace("+= number", "+= called(number)").replace("@kernel", "from parts import called\n@kernel")
    (tmp_path / "sums.py").write_text(source)
    assert run_with("return number + EXTRA", 0) == ["3"]
    assert run_with(edited, 5) == [str(13 if "2" not in edited else 16)]


def test_a_file_with_another_signatures_kernel_is_not_run(run):
    """Two processes that compile for two types at once may give both the same file."""
    run("int64", "float64")
    one, two = sorted(run.cache.rglob("*.nbc"))
    one_bytes, two_bytes = one.read_bytes(), two.read_bytes()
    one.write_bytes(two_bytes)
    two.write_bytes(one_bytes)
    assert run("int64", "float64") == ["3", "4.0"]


def test_a_damaged_file_is_compiled_again(run):
    run("int64")
    (kept,) = run.cache.rglob("*.nbc")
    kept.write_bytes(kept.read_bytes()[:100])
    assert run("int64") == ["3"]


def test_a_full_disk_is_one_warning(monkeypatch, caplog):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(numba.core.caching.IndexDataCacheFile, "save", full)
    first, second = made(), made()
    with caplog.at_level(logging.WARNING):
        assert first(ONES) == second(ONES) == 4
    (record,) = caplog.records
    message = record.getMessage()
    assert "No space left on device" in message
    assert "NUMBA_CACHE_DIR" in message
    assert str(first._cache.cache_path) in message
    assert cache_folder() is None


def test_no_folder_at_all_is_one_warning(monkeypatch, caplog):
    monkeypatch.setattr(numba.core.caching.CacheImpl, "_locator_classes", [])
    with caplog.at_level(logging.WARNING):
        assert made()(ONES) == made()(ONES) == 4
    (record,) = caplog.records
    assert "no folder for compiled kernels can be written" in record.getMessage()
    assert "NUMBA_CACHE_DIR" in record.getMessage()


def test_a_thread_may_be_kept_from_compiling():
    wanted = made()
    with pytest.raises(NotCompiledError), only_from_cache():
        wanted(ONES)
    assert wanted(ONES) == 4
