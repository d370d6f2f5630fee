"""The programs of the page on own clients: they read, from the proto alone, the rows that Packhorse's client makes."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from packhorse.client import PackedDataset
from packhorse.formats import MegatronWriter
from packhorse.prepare import PlanOptions, prepare

ROOT = Path(__file__).parents[2]
PLANS = {"plain": PlanOptions(max_seq_len=32), "cut": PlanOptions(max_seq_len=12, align=4, over_length="truncate")}


@pytest.fixture(scope="module")
def server(tmp_path_factory, make_server):
    root, rng = tmp_path_factory.mktemp("own"), np.random.default_rng(8)
    with MegatronWriter(root / "corpus", vocab_size=90_000) as writer:
        for length in rng.integers(1, 30, 60):
            writer.append(rng.integers(0, 90_000, length))
    for name, plan in PLANS.items():
        prepare(root / "corpus.idx", output=root / "sets" / name, plan=plan)
    with make_server(root / "sets", "--tokens") as server:
        yield server


def program(language, name, folder):
    """Writes a program of the page, and the proto beside it."""
    page = (ROOT / "client/guides/own-client.md").read_text()
    (code,) = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    (folder / name).write_text(code)
    shutil.copy(ROOT / "proto/packhorse/v1/packing.proto", folder)
    return folder / name


def check(printed, server, name):
    batches = list(PackedDataset(server.target, name, batch_size=2))
    rows = np.concatenate([batch["input_ids"].numpy() for batch in batches])
    is_token = np.concatenate([batch["attention_mask"].numpy() for batch in batches])
    segments = np.concatenate([batch["sequence_ids"].numpy() for batch in batches]) + 1
    assert [json.loads(line) for line in printed] == [
        [row.tolist(), (own * mask).tolist()] for row, own, mask in zip(rows, segments, is_token, strict=True)
    ]


@pytest.mark.parametrize("name", PLANS)
def test_fifty_lines_of_python_read_the_rows(server, tmp_path, name):
    script = program("python", "client.py", tmp_path)
    assert len(script.read_text().splitlines()) <= 50
    command = [sys.executable, script, server.target, name]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    check([f"[{line.replace('] [', '], [')}]" for line in found.stdout.splitlines()], server, name)


@pytest.fixture(scope="module")
def node_folder(tmp_path_factory):
    """A folder with the packages that a program in JavaScript needs."""
    npm, folder = shutil.which("npm"), tmp_path_factory.mktemp("node")
    if shutil.which("node") is None or npm is None:
        pytest.skip("Node is not installed: apt-get install nodejs npm runs this test")
    packages = ["@grpc/grpc-js@1.14", "@grpc/proto-loader@0.8"]
    installed = subprocess.run([npm, "install", "--silent", *packages], cwd=folder, timeout=120, check=False)
    if installed.returncode:
        pytest.skip("npm reaches no registry")
    return folder


@pytest.mark.parametrize("name", PLANS)
def test_fifty_lines_of_javascript_read_the_rows(server, node_folder, name):
    script = program("javascript", "client.mjs", node_folder)
    assert len(script.read_text().splitlines()) <= 50
    command = ["node", script, server.target, name]
    found = subprocess.run(command, cwd=node_folder, capture_output=True, text=True, timeout=120, check=True)
    check(found.stdout.splitlines(), server, name)
