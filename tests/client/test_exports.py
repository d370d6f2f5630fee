"""The client's one public module: complete, importable, and light."""

import ast
import importlib
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import packhorse.client
from packhorse import client

PACKAGE = Path(packhorse.client.__file__).parent


def test_every_public_name_is_there_and_sorted():
    assert list(client._PUBLIC) == sorted(client._PUBLIC)
    for name in client._PUBLIC:
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
    assert imported == set(client._PUBLIC)


def test_what_each_public_module_defines_is_exported():
    """Private modules begin with an underscore, or hold machinery that no user needs; packages say what they export."""
    # between modules
    machinery = {
        "Attempts", "Resume", "SharedResume", "OverfullRowError", "LeftOut", "MixtureTally",
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
    assert defined - machinery <= set(client._PUBLIC)


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


def test_a_star_import_takes_all_there_is():
    code = """
from packhorse.client import *
assert connect and Client and PackhorseError and PackedDataset and create_packed_dataloader
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_a_star_import_without_torch_takes_the_rest():
    code = """
import sys, importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "torch" else find(name, package)
from packhorse.client import *
assert connect and Client and PackhorseError and "PackedDataset" not in globals()
assert not {"torch", "lightning", "numba"} & set(sys.modules)
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_dir_lists_what_is_public_and_nothing_else():
    names = {name for name in dir(client) if not name.startswith("__")}
    assert names == {*client._PUBLIC, "errors"}
    assert {"__version__", "__doc__", "__all__"} <= set(dir(client))


def test_dir_leaves_out_what_is_not_installed(monkeypatch):
    for missing, gone in (("torch", {"PackedDataset", "PackedDataModule"}), ("lightning", {"PackedDataModule"})):
        found = {"torch": True, "lightning": True, missing: None}
        monkeypatch.setattr(client, "find_spec", found.get)
        assert not gone & set(dir(client))
        assert "connect" in dir(client)
    assert "PackedDataset" in dir(client)


def test_help_names_everything_public():
    """Errors are drawn as a tree in their own module."""
    words = set(re.findall(r"\w+", client.__doc__ + client.errors.__doc__))
    assert set(client._PUBLIC) - words == set(), "add what is new to the docstring of packhorse/client/__init__.py"


def test_help_works_without_torch():
    code = """
import sys
sys.modules["torch"] = None
import importlib.util
importlib.util.find_spec, found = (lambda name, package=None: None), importlib.util.find_spec
import pydoc
import packhorse.client
text = pydoc.render_doc(packhorse.client, renderer=pydoc.plaintext)
assert "create_packed_dataloader" in text and "def connect(" in text.replace("connect(target", "def connect(target")
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_the_version_is_the_package_s():
    assert client.__version__ == importlib.metadata.version("packhorse")


def test_the_library_logs_under_one_name_and_is_quiet_unless_asked():
    code = """
import logging, sys
import packhorse.client
log = logging.getLogger("packhorse.client.transport.retries")
log.warning("a server is away")
logging.basicConfig(stream=sys.stdout, format="%(name)s: %(message)s")
log.warning("a server is back")
"""
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("packhorse.client.transport.retries: a server is back\n", "")


def test_every_logger_is_a_child_of_packhorse_or_a_named_library():
    for path in [*(PACKAGE.parents[2] / "server").rglob("*.py"), *PACKAGE.rglob("*.py")]:
        for name in re.findall(r"getLogger\((.*?)\)", path.read_text()):
            is_of_library = name in ("GRPC_LOGGER", "_EXPORTER_LOGGER")
            assert name == "__name__" or name.startswith('"packhorse') or is_of_library, path
