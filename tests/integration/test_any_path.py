"""A clone whose path has a blank and an umlaut: the demo and a part of the tests run there.

Owns the clone and its environment, which borrows this one's packages instead of installing them again.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PART = (
    "tests/topology",
    "tests/dataset",
    "tests/storage",
    "tests/server/service/test_layers.py",
    "tests/test_headers.py",
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(3000)]


def run(*command, cwd):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MAKE"))}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A clone with an environment of its own, in which the package is installed as `make` does it."""
    folder = tmp_path_factory.mktemp("clones") / "my löcal copy" / "packhorse"
    folder.parent.mkdir()
    run("git", "clone", "--quiet", str(ROOT), str(folder), cwd=ROOT)
    run(sys.executable, "-m", "venv", ".venv", cwd=folder)
    (packages,) = (folder / ".venv" / "lib").glob("python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--no-compile")
    run(".venv/bin/python", "-m", "pip", "install", *options, "--editable", ".", cwd=folder)
    (folder / ".venv" / ".installed").touch()
    where = run(".venv/bin/python", "-c", "import packhorse.cli; print(packhorse.cli.__file__)", cwd=folder)
    assert Path(where.strip()).is_relative_to(folder)
    return folder


def test_a_part_of_the_tests(clone):
    assert " passed" in run(".venv/bin/python", "-m", "pytest", "-q", "-m", "not long", *PART, cwd=clone)


def test_make_demo(clone):
    assert "and a killed server: yes" in run("make", "demo", cwd=clone)
    assert (clone / "demo-output" / "packing.png").is_file()
