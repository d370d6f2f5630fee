"""Keys, permutations, seeds, plans and bins are today what they were when they were frozen (invariant 6)."""

import json
import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "golden"
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


def test_frozen_permutations_equal_the_twin(twin):
    """The files hold what the definition says, not merely what the kernels once said."""
    for row in json.loads((FOLDER / "permutations.json").read_text()):
        oracle = twin(row["size"], row["key"], row["tweak"])
        assert row["images"] == [oracle(value) for value in row["values"]]
