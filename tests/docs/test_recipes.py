"""CONTRIBUTING's recipes, done: each is a diff that still applies, touches few files, passes the gates, and works.

Owns running them. A recipe is a folder of `recipes`: `change.diff`, made with `git diff -U1`, and `proof.py`, a script
that ends with an error unless the feature works through the real path.
"""

import os
import re
import shutil
import subprocess
import sys

import pytest
from pages import ROOT, text_of

RECIPES = ROOT / "tests/docs/recipes"

MOST_FILES = {
    "a fact of a dataset": ("fact", 4),
    "an option of prepare": ("prepare_option", 4),
    "an option of batches": ("batch_option", 2),
    "an output preset": ("preset", 2),
    "a trainer": ("trainer", 1),
    "a token source": ("token_source", 2),
    "a packer": ("packer", 2),
    "a method of the service": ("method", 7),
    "a metric with its panel": ("metric", 2),
}
"""Recipe → its folder, and the source files that it may touch, generated ones left out.

A method takes five, and its command two more; each says what no other can. They are the message, its answer, its lane,
its types for transports and its Python signature; the command, and the list of commands, read without importing any.
"""

GATES = ["test_house.py", "test_headers.py", "test_module_names.py", "test_words.py"]
COPIED = ["proto", "server", "client", "tests", "deploy", "pyproject.toml", "MAP.md", "CONTRIBUTING.md"]
NAMES = [name for name, _ in MOST_FILES.values()]


def apply_diff(name, folder, *flags):
    command = ["git", "apply", *flags, RECIPES / name / "change.diff"]
    alone = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}  # in a repository's folder it does nothing
    return subprocess.run(command, cwd=folder, env=alone, capture_output=True, text=True)


def test_every_folder_is_a_recipe_of_the_page():
    page = text_of("CONTRIBUTING.md")
    assert [name for name in MOST_FILES if f"**… {name}.**" not in page] == []
    assert sorted(NAMES) == sorted(path.parent.name for path in RECIPES.glob("*/proof.py"))


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_applies_and_touches_few_files(name):
    done = apply_diff(name, ROOT, "--check")
    assert done.returncode == 0, f"make {name}/change.diff again: {done.stderr}"
    touched = re.findall(r"^\+\+\+ b/(\S+)", (RECIPES / name / "change.diff").read_text(), re.MULTILINE)
    assert len(touched) <= dict(MOST_FILES.values())[name], touched


def run(tree, *command):
    """Runs a Python of the copied tree."""
    path = os.pathsep.join(str(tree / folder) for folder in ("proto", "server", "client"))
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the tree with all recipes done, one after the other, and what is generated made again."""
    tree = tmp_path_factory.mktemp("recipes") / "tree"
    tree.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name)
        else:
            shutil.copy2(ROOT / name, tree / name)
    for name in NAMES:
        done = apply_diff(name, tree)
        assert done.returncode == 0, f"after the others, {name}/change.diff does not apply: {done.stderr}"
    run(tree, "proto/generate.py")
    run(tree, "deploy/grafana/generate.py")
    assert str(tree) in run(tree, "-c", "import packhorse.client.api as module; print(module.__file__)")
    return tree


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_gates_forbid_no_recipe(tree):
    run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"tests/{name}" for name in GATES))
    run(tree, "-m", "ruff", "check", "proto", "server", "client", "deploy")
    run(tree, "-m", "ruff", "format", "--check", "proto", "server", "client", "deploy")
    run(tree, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()")


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_works(name, tree, tmp_path):
    run(tree, tree / "tests/docs/recipes" / name / "proof.py", tmp_path)
