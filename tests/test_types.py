"""Users' type checkers see packhorse's types: every package says so, in the tree and in the wheel."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(
    path.parent for folder in ("proto", "server", "client") for path in ROOT.glob(f"{folder}/packhorse/*/__init__.py")
)

GOOD = """
from packhorse.client import PackedDataset, RetryPolicy, connect
from packhorse.packing import pack_histogram

with connect("127.0.0.1:50051", retry=RetryPolicy(deadline_seconds=5)) as client:
    bins: int = client.get_dataset("corpus").num_bins
dataset = PackedDataset("embedded:datasets", "corpus", {0: [1, 2]}, batch_size=2)
for batch in dataset:
    rows: int = len(batch["input_ids"])
plan = pack_histogram({5: 2}, 10)
efficiency: float = plan.efficiency
"""
BAD = """
from packhorse.client import connect

with connect(50051) as client:
    client.get_dataset("corpus").num_bin
"""


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_every_package_says_that_it_has_types(package: Path) -> None:
    assert (package / "py.typed").is_file()


def test_mypy_understands_a_user_s_script(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "bad.py").write_text(BAD)
    # Not by MYPYPATH, where mypy would not ask for py.typed: the packages are found as installed ones are.
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nstrict = true\n[mypy-torch.*,numpy.*,numba.*,google.*,lightning.*]\nfollow_imports = skip\n"
        "follow_imports_for_stubs = true\n"
    )
    command = [sys.executable, "-m", "mypy", "--cache-dir", tmp_path / "cache", "good.py", "bad.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(lines) == 2, done.stdout + done.stderr
    assert lines[0].startswith("bad.py:4: ")
    assert '"connect" has incompatible type "int"; expected "str | MemoryDatasets"' in lines[0]
    assert '"DatasetInfo" has no attribute "num_bin"' in lines[1]
