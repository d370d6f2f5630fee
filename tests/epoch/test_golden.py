"""Keys, permutations, seeds, plans and bins are today what they were when they were frozen (invariant 6)."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "golden"
WITHOUT_NUMBA = """
import json, runpy, sys
sys.modules["numba"] = sys.modules["llvmlite"] = None
print(json.dumps(runpy.run_path(sys.argv[1])["vectors"]()))
"""
NAMES = ("assignments", "epochs", "files", "keys", "permutations", "plans", "schedules", "seeds", "sources")


@pytest.fixture(scope="module")
def vectors():
    return runpy.run_path(str(FOLDER / "regenerate.py"))["vectors"]()


def test_every_golden_file_is_compared(vectors):
    assert sorted(vectors) == sorted(path.stem for path in FOLDER.glob("*.json")) == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_values_have_not_changed(name, vectors):
    frozen = json.loads((FOLDER / f"{name}.json").read_text())
    assert len(frozen) == len(vectors[name]) > 1
    for old, new in zip(frozen, vectors[name], strict=True):
        assert new == old


def test_without_numba_values_are_the_same():
    """Every kind of epoch, also those whose loops call what their module defines after them."""
    command = [sys.executable, "-c", WITHOUT_NUMBA, FOLDER / "regenerate.py"]
    done = subprocess.run(command, cwd=FOLDER.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == {name: json.loads((FOLDER / f"{name}.json").read_text()) for name in NAMES}


def test_frozen_permutations_equal_the_twin(twin):
    """The files hold what the definition says, not merely what the kernels once said."""
    for row in json.loads((FOLDER / "permutations.json").read_text()):
        oracle = twin(row["size"], row["key"], row["tweak"])
        assert row["images"] == [oracle(value) for value in row["values"]]
