"""The client's one public module: complete, importable, and light."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import packhorse.client
from packhorse import client

PACKAGE = Path(packhorse.client.__file__).parent


def test_every_public_name_is_there_and_sorted():
    assert client.__all__ == sorted(client.__all__)
    for name in client.__all__:
        assert getattr(client, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        client.nothing  # noqa: B018


def test_all_is_what_the_module_imports():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("packhorse.")
        for alias in node.names
    }
    assert imported == set(client.__all__)


def test_what_each_public_module_defines_is_exported():
    """Private modules begin with an underscore, or hold machinery that no user needs; packages say what they export."""
    machinery = {
        "Attempts", "Resume", "SharedResume", "OverfullRowError", "Parcel", "LeftOut",  # between modules
    }  # fmt: skip
    defined = set()
    rooms = ("service", "batches", "loading")
    for path in [*PACKAGE.glob("[a-z]*.py"), *(path for room in rooms for path in PACKAGE.glob(f"{room}/[a-z]*.py"))]:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined.add(node.name)
    for path in PACKAGE.glob("[a-z]*/__init__.py"):
        if path.parent.name in rooms:
            continue
        defined |= set(importlib.import_module(f"packhorse.client.{path.parent.name}").__all__)
    assert defined - machinery <= set(client.__all__)


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_importing_is_light(running_server):
    code = f"""
import sys
from packhorse.client import connect, BinStream, PackhorseError
with connect({running_server.target!r}) as client:
    assert client.get_dataset("few").num_sequences == 7
    assert sum(len(block) for block in client.stream_bins("few")) == client.get_dataset("few").num_bins
heavy = {{"torch", "numba", "pyarrow", "packhorse.server", "packhorse.epoch", "packhorse.dataset"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_without_torch_the_rest_works_and_the_message_names_the_extra():
    code = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, NoTorch())
from packhorse import client
client.connect("127.0.0.1:1")
try:
    client.PackedDataset
except ImportError as error:
    assert "packhorse[client]" in str(error), error
else:
    raise SystemExit("no error")
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_without_the_server_s_packages_embedded_says_what_to_install():
    code = """
import sys
sys.modules["numba"] = None
from packhorse.client import PackhorseError, connect
try:
    connect("embedded:/nowhere")
except PackhorseError as error:
    assert "numba" in str(error) and "packhorse[server]" in str(error), error
else:
    raise SystemExit("no error")
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr
