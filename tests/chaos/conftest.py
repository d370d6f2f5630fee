"""A server that is attacked, and what the attacks need."""

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # the benchmarks import `load` in the same way


@pytest.fixture(scope="session")
def attacked_root(tmp_path_factory):
    """The datasets of `load.prepare_datasets`."""
    import load

    return load.prepare_datasets(tmp_path_factory.mktemp("attacked"))


@pytest.fixture
def slow_servers(monkeypatch, tmp_path):
    """Environment of servers whose blocks stay small and come slowly, so that every kill finds streams on their way."""
    (tmp_path / "sitecustomize.py").write_text(
        "import time\n"
        "import packhorse.server.methods.open_stream as open_stream\n"
        "from packhorse.epoch import Assignment\n"
        "open_stream.BLOCK_BYTES = 512\n"
        "bins = Assignment.bins\n"
        "Assignment.bins = lambda self, *which: time.sleep(0.01) or bins(self, *which)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
