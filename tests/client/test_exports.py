"""The client's one public module: complete, importable, and light."""

import importlib
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_origin

import pytest
from tests import scripts

import packhorse.client
from packhorse import client

PACKAGE = Path(packhorse.client.__file__).parent


ROOMS = ("batches", "masks", "presets", "sources", "streams")


def test_every_public_name_is_there_and_sorted():
    assert list(client.__all__) == sorted(client.__all__)
    for name in client.__all__:
        assert getattr(client, name).__name__ == name
    with pytest.raises(AttributeError, match="attribute nothing"):
        client.nothing  # noqa: B018


def test_what_most_trainers_write_is_forty_names_at_most():
    assert len(client.__all__) <= 40


@pytest.mark.parametrize("room", ROOMS)
def test_every_name_of_a_room_is_there(room):
    module = importlib.import_module(f"packhorse.client.{room}")
    assert len(module.__all__) == len(set(module.__all__))
    for name in module.__all__:
        found = getattr(module, name)
        assert name.isupper() or get_origin(found) is Literal or found.__name__ == name


def test_each_name_has_one_meaning():
    """What stands at the top and in a room is the same object."""
    for room in (*ROOMS, "errors", "options"):
        module = importlib.import_module(f"packhorse.client.{room}")
        for name in set(client.__all__) & set(dir(module)):
            assert getattr(client, name) is getattr(module, name)


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
sys.modules["packhorse.server.methods"] = None
from packhorse.client import PackhorseError, connect
try:
    connect("embedded:/nowhere")
except PackhorseError as error:
    assert "packhorse.server.methods" in str(error) and "packhorse[server]" in str(error), error
else:
    raise SystemExit("no error")
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_without_numba_datasets_in_memory_give_bins_all_the_same():
    code = """
import sys
sys.modules["numba"] = sys.modules["llvmlite"] = None
from packhorse.client import MemoryDatasets, connect
with connect(MemoryDatasets({"corpus": [5, 3, 3, 5]}, max_seq_len=8)) as client:
    assert client.get_bins("corpus", seed=1, positions=[0]).ids.tolist() == [3, 2]
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_a_star_import_takes_all_there_is():
    """What scripts are forked from has begun with one, before it had torch or anything of the package."""
    code = """
from packhorse.client import *
assert connect and Client and PackhorseError and PackedDataset and create_packed_dataloader
"""
    done = scripts.run(code)
    assert done.returncode == 0, done.stderr


def test_help_names_every_room():
    for room in (*ROOMS, "errors"):
        assert f"packhorse.client.{room} " in client.__doc__


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
