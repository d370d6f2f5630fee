"""The core is complete without the shelf: its tests pass in a copy of the tree that lacks it.

A copy without any package of the shelf runs all of them; a copy without one is collected, and its commands are listed.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.shelf_packages import SHELF

ROOT = Path(__file__).parents[1]
SECONDS = 1500
ONLY_HERE = """
import os
import sys

def is_elsewhere(path):
    return not path.startswith({here!r}) and os.path.isdir(os.path.join(path, "packhorse"))


sys.path[:] = [path for path in sys.path if not is_elsewhere(path)]
"""
"""Takes the tree that is installed off the path: `packhorse` is a namespace, so a package would be found there."""


def core_tests() -> list[str]:
    """Folders and files of the core's tests, as the Makefile names them."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.search(r"^CORE := \$\(addprefix tests/,(.*?)\)", text, re.MULTILINE)
    assert found is not None
    return [f"tests/{name}" for name in found[1].split()]


def copied_without(folder: Path, packages: tuple[str, ...]) -> Path:
    """Copies the tree as git knows it, without some packages and their tests."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if not any(f"/packhorse/{each}/" in name or name.startswith(f"tests/shelf/{each}/") for each in packages):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / "only_here").mkdir()
    (folder / "only_here/sitecustomize.py").write_text(ONLY_HERE.format(here=str(folder)), encoding="utf-8")
    for package in packages:
        found = run(folder, "-c", f"import packhorse.{package}")
        assert f"No module named 'packhorse.{package}'" in found.stderr
    return folder


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(folder / root) for root in ("only_here", "proto", "server", "client"))
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


@pytest.mark.long
@pytest.mark.timeout(SECONDS)
def test_the_core_s_tests_pass_without_any_of_it(tmp_path: Path) -> None:
    folder = copied_without(tmp_path / "packhorse", SHELF)
    marks = "not long and not benchmark and not realtime and not shelf"
    done = run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "-m", marks, *core_tests())
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.long
@pytest.mark.parametrize("package", SHELF)
def test_the_core_s_tests_need_no_package_of_it(package: str, tmp_path: Path) -> None:
    folder = copied_without(tmp_path / "packhorse", (package,))
    done = run(
        folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", "-m", "not shelf", *core_tests()
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    listed = run(folder, "-m", "packhorse", "--help")
    assert listed.returncode == 0, listed.stderr
    assert "serve" in listed.stdout
