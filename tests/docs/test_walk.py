"""CONTRIBUTING's walk, done: its lines are written into a copy of the tree, and the new field is in a batch."""

import os
import shutil
import subprocess
import sys

from pages import ROOT, blocks_of

BATCH = """
import sys
from packhorse.client import PackedDataset, connect
import packhorse.client.batches.batch as module

assert module.__file__.startswith(sys.argv[1]), module.__file__
batch = next(iter(PackedDataset(f"embedded:{sys.argv[2]}", "rows", sys.argv[3], batch_size=1)))
with connect(f"embedded:{sys.argv[2]}") as client:
    assert batch["total_tokens"] == client.get_dataset("rows").total_tokens > 0
print("walked")
"""


def steps():
    """(file, lines that are there, the same with those that are new), in the walk's order."""
    for block in blocks_of("CONTRIBUTING.md"):
        if block.language != "diff":
            continue
        name, *lines = block.code.splitlines()
        new = [line.startswith("+") for line in lines]
        written = [line[1:] if is_new else line for line, is_new in zip(lines, new, strict=True)]
        there = [line for line, is_new in zip(written, new, strict=True) if not is_new]
        yield name.removeprefix("# "), "".join(f"{line}\n" for line in there), "".join(f"{line}\n" for line in written)


def test_a_new_field_comes_from_the_proto_to_the_batch(tmp_path, corpus):
    for folder in ("proto", "server", "client"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("guides"))
    for name, there, written in steps():
        text = (tmp_path / name).read_text()
        assert text.count(there) == 1, f"{name} has this {text.count(there)} times:\n{there}"
        (tmp_path / name).write_text(text.replace(there, written))
    path = os.pathsep.join(str(tmp_path / folder) for folder in ("proto", "server", "client"))
    for command in (["proto/generate.py"], ["-c", BATCH, tmp_path, corpus.root, corpus.megatron]):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "walked\n"
