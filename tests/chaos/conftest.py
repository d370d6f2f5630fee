"""A server that is attacked, and what the attacks need."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # the benchmarks import `load` in the same way


@pytest.fixture(scope="session")
def attacked_root(tmp_path_factory):
    """The datasets of `load.prepare_datasets`."""
    import load

    return load.prepare_datasets(tmp_path_factory.mktemp("attacked"))
