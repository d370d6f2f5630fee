"""What tests of whole servers share."""

import os

import pytest


@pytest.fixture
def small_blocks(monkeypatch, tmp_path):
    """Environment of servers whose blocks stay small and come slowly: streams last, and none lies in buffers."""
    (tmp_path / "sitecustomize.py").write_text(
        "import time\n"
        "import packhorse.server.methods.open_stream as open_stream\n"
        "open_stream.BLOCK_BYTES = 512\n"
        "encode = open_stream.encode\n"
        "open_stream.encode = lambda bins, *more: time.sleep(0.02) or encode(bins, *more)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
