"""`prepare --engine ray` on a real cluster of two nodes: the same bytes, also where a node is killed in the middle."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.flat_words import prepare

from packhorse.prepare import _sort, _work, counting

OPTIONS: dict[str, Any] = {
    "length_column": "n",
    "id_column": "id",
    "max_seq_len": 64,
    "over_length": "split",
    "progress": False,
}


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'packhorse[ray]'")):
        prepare(table(tmp_path), output=tmp_path / "out", engine="ray", **OPTIONS)
    assert [path.name for path in tmp_path.iterdir()] == ["x.parquet"]


def table(folder: Path) -> Path:
    rng = np.random.default_rng(3)
    columns = {"n": rng.integers(1, 90, 2000), "id": rng.permutation(2000) + 2**33}
    pq.write_table(pa.table(columns), folder / "x.parquet", row_group_size=100)
    return folder / "x.parquet"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.long
def test_a_cluster_writes_the_same_bytes(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "_TASK_ROWS", 100)
    monkeypatch.chdir(tmp_path)  # where the cluster's processes are not
    table(tmp_path)
    prepare("x.parquet", output="local", workers=1, **OPTIONS)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    prepare("x.parquet", output="far", engine="ray", **OPTIONS)
    assert contents(tmp_path / "far") == contents(tmp_path / "local")
    with pytest.raises(ValueError, match=r"x\.parquet\) has \d+ tokens, over max_seq_len 64"):
        prepare("x.parquet", output="refused", engine="ray", **{**OPTIONS, "over_length": "error"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["far", "local", "x.parquet"]


@pytest.mark.long
def test_a_node_that_is_killed_in_the_middle_costs_nothing(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "_TASK_ROWS", 100)
    source = table(tmp_path)
    prepare(source, output=tmp_path / "local", workers=1, **OPTIONS)
    node = cluster.worker_nodes and next(iter(cluster.worker_nodes))
    killed: list[str] = []
    add = _work.Records.add

    def kill_then_add(records: Any, task: int, result: Any) -> None:
        if records.folder.name == "filled" and task == 3:
            cluster.remove_node(node, allow_graceful=False)
            killed.append(node.node_id)
        add(records, task, result)

    monkeypatch.setattr(_work.Records, "add", kill_then_add)
    monkeypatch.setattr(_sort, "write_spill", slowed(_sort.write_spill))
    prepare(source, output=tmp_path / "far", engine="ray", ray_address=cluster.address, **OPTIONS)
    assert killed
    assert contents(tmp_path / "far") == contents(tmp_path / "local")
    cluster.add_node(num_cpus=1)


@pytest.mark.long
@pytest.mark.realtime
def test_a_signal_ends_tasks_of_the_cluster_and_resume_goes_on(
    cluster: Any, tmp_path: Path, wait_until: Callable[..., object]
) -> None:
    source = table(tmp_path)
    script = Path(__file__).with_name("slow_prepare.py")
    command = [sys.executable, str(script), "prepare", "--input", str(source), "--length-column", "n"]
    command += ["--id-column", "id", "--max-seq-len", "64", "--over-length", "split", "--output", str(tmp_path / "far")]
    command += ["--engine", "ray", "--ray-address", cluster.address]
    environment = {**os.environ, "SLOW_STEP": "write_spill"}  # for ever, on the cluster
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        wait_until((tmp_path / ".far.work" / "counts" / "000000").exists, 120)
        time.sleep(1)  # into the endless task
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 143, errors
    assert "no incomplete dataset is left" in errors
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [".far.work"]
    prepare(source, output=tmp_path / "far", engine="ray", ray_address=cluster.address, resume=True, **OPTIONS)
    prepare(source, output=tmp_path / "local", workers=1, **OPTIONS)
    assert contents(tmp_path / "far") == contents(tmp_path / "local")


def slowed(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A task that is long enough to be interrupted on every node."""

    def run(task: Any) -> Any:
        time.sleep(0.3)
        return function(task)

    return run
