"""What arm64 makes is what x86 makes: golden vectors, plans, digests, files and bins, compiled and as Python runs it.

Owns the comparison, by emulation. Leaves the emulated Python to `arm64`, and what is made to
tests/golden/on_this_machine.py.
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.deploy import arm64

MADE = arm64.REPOSITORY / "tests" / "golden" / "on_this_machine.py"
SECONDS = 3600
"""Emulation is about 15 times slower than a processor, and compiles every kernel the first time."""

WITHOUT_NUMBA = "import runpy, sys; sys.modules['numba'] = sys.modules['llvmlite'] = None; "
RUN = f"import runpy; runpy.run_path({str(MADE)!r}, run_name='__main__')"
OF_IMAGE = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
"""As .github/workflows/release.yml builds the image for arm64."""

Make = Callable[[str], Any]

pytestmark = [pytest.mark.long, pytest.mark.timeout(SECONDS)]


def made(command: list[str], code: str, **environment: str) -> Any:
    """What a Python prints."""
    done = subprocess.run([*command, "-c", code], env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def on_arm64(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """What code prints on arm64, with the project as it is now."""
    if platform.machine() != "x86_64":
        pytest.skip(
            f"this machine is {platform.machine()}: tests/epoch/test_golden.py compares it with the frozen files"
        )
    if reason := arm64.missing():
        pytest.skip(reason)
    try:
        packages = arm64.get_packages()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"pip could not download wheels for arm64: status {error.returncode}")
    project = arm64.get_project(tmp_path_factory.mktemp("wheels"))
    environment = OF_IMAGE | {
        "NUMBA_CACHE_DIR": str(project / "kernels"),
        "PYTHONPATH": os.pathsep.join(map(str, (project, packages, arm64.REPOSITORY))),
        "PYTHONPYCACHEPREFIX": str(arm64.FOLDER / "bytecode"),
    }
    return lambda code: made(arm64.command(), code, **environment)


@pytest.fixture(scope="module")
def here() -> Any:
    """What this machine makes, with compiled kernels."""
    return made([sys.executable], RUN, PYTHONPATH=str(arm64.REPOSITORY) + os.pathsep + os.environ.get("PYTHONPATH", ""))


@pytest.fixture(scope="module")
def compiled(on_arm64: Make) -> Any:
    """What arm64 makes, with compiled kernels."""
    return on_arm64(RUN)


@pytest.fixture(scope="module")
def without_numba(on_arm64: Make) -> Any:
    """What arm64 makes where Python runs every loop."""
    return on_arm64(WITHOUT_NUMBA + RUN)


@pytest.fixture(params=["without_numba", "compiled"])
def there(request: pytest.FixtureRequest) -> Any:
    """What arm64 makes, either way."""
    return request.getfixturevalue(request.param)


def test_each_is_what_it_is_called(here: Any, compiled: Any, without_numba: Any) -> None:
    found = [(each["machine"], each["has_numba"]) for each in (here, compiled, without_numba)]
    assert found == [("x86_64", True), ("aarch64", True), ("aarch64", False)]


def test_golden_vectors_are_the_frozen_ones(there: Any) -> None:
    frozen = {file.stem: json.loads(file.read_text()) for file in MADE.parent.glob("*.json")}
    assert there["vectors"].keys() == frozen.keys() != set()
    for name, rows in frozen.items():
        assert there["vectors"][name] == rows, name


def test_packers_make_the_same_bins(there: Any, here: Any) -> None:
    assert len(there["packed"]) > 8
    for name, bins in there["packed"].items():
        assert bins == here["packed"][name], name


def test_prepared_files_digests_and_bins_are_the_same(compiled: Any, here: Any) -> None:
    assert compiled["datasets"].keys() == here["datasets"].keys() != set()
    for name, dataset in here["datasets"].items():
        assert compiled["datasets"][name].get("digest") == dataset.get("digest"), name
        assert compiled["datasets"][name].get("files") == dataset.get("files"), name
        assert all(dataset["bins"])
        assert compiled["datasets"][name]["bins"] == dataset["bins"], name
