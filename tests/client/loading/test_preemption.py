"""Signals that reach the whole process group: workers go on until the trainer has saved, and end with it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import wait_until

SCRIPT = """
import logging, multiprocessing, os, signal, sys
from torch.utils.data import DataLoader
from packhorse.client import LoaderOptions, MemoryDatasets, PackedDataset, create_packed_dataloader

def main(kind, method, name):
    asked = []
    if name != "none":
        signal.signal(getattr(signal, name), lambda *_: asked.append(1))
    rows = [[1, 2]] * 400
    datasets = MemoryDatasets({"rows": rows}, max_seq_len=2)
    if kind == "own":
        dataset = PackedDataset(datasets, "rows", rows, batch_size=1)
        loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=method)
    else:
        options = LoaderOptions(num_workers=2, device="cpu", prefetch_factor=1, multiprocessing_context=method)
        loader = create_packed_dataloader(datasets, "rows", rows, batch_size=1, loader=options)
    for step, batch in enumerate(loader):
        if step == 3:
            print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
            if name == "none":
                sys.stdin.read()
            os.killpg(os.getpid(), getattr(signal, name))
        if step == 200:
            print("saved at step", step, "asked", len(asked), flush=True)
            break  # nothing is closed: the end of the process ends the workers

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


def start(tmp_path: Path, *words: str, **options) -> subprocess.Popen[str]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, script, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("kind", "method", "name"),
    [
        ("loader", "fork", "SIGTERM"),
        ("loader", "forkserver", "SIGTERM"),
        pytest.param("loader", "spawn", "SIGTERM", marks=pytest.mark.long),
        ("loader", "fork", "SIGINT"),
        pytest.param("loader", "forkserver", "SIGUSR1", marks=pytest.mark.long),
        ("own", "fork", "SIGTERM"),
    ],
)
def test_a_trainer_saves_after_a_signal_to_its_process_group(tmp_path, kind, method, name) -> None:
    with start(tmp_path, kind, method, name) as trainer:
        told, errors = trainer.communicate(timeout=240)
    assert "saved at step 200 asked 1" in told, errors
    assert trainer.returncode == 0, errors
    for pid in map(int, told.splitlines()[0].split()):
        wait_until(lambda pid=pid: not is_alive(pid))
    assert "Traceback" not in errors


@pytest.mark.parametrize("method", ["fork", pytest.param("forkserver", marks=pytest.mark.long)])
def test_workers_end_with_their_parent(tmp_path, method) -> None:
    with start(tmp_path, "loader", method, "none") as trainer:
        assert trainer.stdout is not None
        pids = [int(pid) for pid in trainer.stdout.readline().split()]
        assert len(pids) == 2
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        assert all(map(is_alive, pids))
        trainer.kill()
        for pid in pids:
            wait_until(lambda pid=pid: not is_alive(pid))
