"""Signals that reach the whole process group: workers go on until the trainer has saved, and end with it."""

import os
import signal
from pathlib import Path

import pytest
from tests import scripts
from tests.waiting import wait_until

SCRIPT = """
import multiprocessing, os, signal, sys
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
                signal.pause()
            os.killpg(os.getpid(), getattr(signal, name))
        if step == 200:
            print("saved at step", step, "asked", len(asked), flush=True)
            break  # nothing is closed: the end of the process ends the workers

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


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
def test_a_trainer_saves_after_a_signal_to_its_process_group(kind, method, name) -> None:
    with scripts.running(SCRIPT, kind, method, name) as trainer:
        status = trainer.wait(240)
        told, errors = trainer.out(), trainer.err()
    assert "saved at step 200 asked 1" in told, errors
    assert status == 0, errors
    for pid in map(int, told.splitlines()[0].split()):
        wait_until(lambda pid=pid: not is_alive(pid))
    assert "Traceback" not in errors


@pytest.mark.parametrize("method", ["fork", pytest.param("forkserver", marks=pytest.mark.long)])
def test_workers_end_with_their_parent(method) -> None:
    with scripts.running(SCRIPT, "loader", method, "none") as trainer:
        wait_until(lambda: trainer.out().endswith("\n"), seconds=240)
        pids = [int(pid) for pid in trainer.out().split()]
        assert len(pids) == 2
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        assert all(map(is_alive, pids))
        trainer.send_signal(signal.SIGKILL)
        for pid in pids:
            wait_until(lambda pid=pid: not is_alive(pid))


PRELOADED = """
import multiprocessing.spawn, os, signal
from packhorse.client.loading.workers.preemption import protected_fork_server, starting_workers

def work():
    print("blocks", list(signal.pthread_sigmask(signal.SIG_BLOCK, ())), flush=True)

if __name__ == "__mp_main__":  # in the fork server, which imports this before all else
    print("preloaded", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
if __name__ == "__main__":
    data_of = multiprocessing.spawn.get_preparation_data

    def with_script(name):  # Python since 3.12.8 and 3.13.1 preloads the script; before, it looked for a wrong key
        data = data_of(name)
        return data | {"main_path": data["init_main_from_path"]}

    multiprocessing.spawn.get_preparation_data = with_script
    worker = protected_fork_server().Process(target=work)
    with starting_workers():
        worker.start()
    worker.join()
    raise SystemExit(worker.exitcode)
"""


def test_a_fork_server_survives_signals_that_come_while_it_imports_the_script() -> None:
    done = scripts.run(PRELOADED)
    assert (done.returncode, done.stdout) == (0, "preloaded\nblocks []\n"), done.stderr
