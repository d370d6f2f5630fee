"""Every block of every page, and every example, with the packages that a user installs and not with this repository's.

Owns the environment: the built wheel, and beside it the dependencies that are installed here. Leaves the pages to
`test_pages`, the examples to `tests/examples`.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, env=without_path())
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout


def without_path() -> dict[str, str]:
    """The environment, without what would lead to the repository's packages."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python with the wheel. A path file adds the packages that are installed here, but not their own path files."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, ROOT, cwd=folder)
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    found = folder / "venv" / "bin" / "python"
    own = Path(run(found, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(found, "-m", "pip", "install", "--quiet", "--no-deps", next(folder.glob("*.whl")), cwd=folder)
    return found


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("tests", ["tests/docs/test_pages.py", "tests/examples"])
def test_pages_and_examples_run_from_the_wheel(python: Path, tests: str) -> None:
    where = run(python, "-c", "import packhorse.cli; print(packhorse.cli.__file__)", cwd=ROOT)
    assert Path(where.strip()).is_relative_to(python.parents[1])
    run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "long or not long", tests, cwd=ROOT)
