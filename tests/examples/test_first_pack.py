"""The notebook runs from its first cell to its last, and the repository holds it without what it showed."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "client" / "examples").glob("*.ipynb"))
sys.path.append(str(ROOT / "deploy" / "docs"))

from notebooks import cells_of, outputs_of  # noqa: E402


def test_the_first_pack_is_as_the_documents_alone() -> None:
    """Its assertions compare losses and gradients; here it only has to run, and to show its pictures."""
    path = ROOT / "client/examples/first_pack.ipynb"
    shown = "\n".join(outputs_of(path))
    assert shown.count("<svg ") == 2
    assert "largest difference of a gradient" in shown


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_what_it_showed(path: Path) -> None:
    for cell in json.loads(path.read_text())["cells"]:
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_of_code_has_one_of_words_before_it(path: Path) -> None:
    kinds = [kind for kind, _ in cells_of(path)]
    assert kinds == ["markdown", *["markdown", "code"] * ((len(kinds) - 2) // 2), "markdown"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_examples_list_the_notebook(path: Path) -> None:
    assert f"({path.name})" in (path.parent / "README.md").read_text()


def test_a_cell_that_fails_is_named(tmp_path: Path) -> None:
    path = tmp_path / "wrong.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": ["x = 1\n", "assert x == 2"]}]}))
    with pytest.raises(RuntimeError, match=r"wrong\.ipynb, cell 0"):
        outputs_of(path)
