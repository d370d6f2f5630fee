"""Two replicas that are killed at random moments, one after the other, under a whole run."""

import itertools
import os
import random
import threading

import pytest

from packhorse.client import RetryPolicy, connect
from packhorse.topology import Topology

PATIENT = RetryPolicy(deadline_seconds=120, first_delay_seconds=0.02, most_delay_seconds=0.5)
SHAPE = Topology(world_size=4, workers_per_rank=2, batch_size=2)


@pytest.fixture
def slow_servers(monkeypatch, tmp_path):
    """Environment of servers whose blocks stay small and come slowly, so that every kill finds streams on their way."""
    (tmp_path / "sitecustomize.py").write_text(
        "import time\n"
        "import packhorse.server.backend as backend\n"
        "from packhorse.epoch import Assignment\n"
        "backend.BLOCK_BYTES = 512\n"
        "bins = Assignment.bins\n"
        "Assignment.bins = lambda self, *which: time.sleep(0.01) or bins(self, *which)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)


@pytest.mark.usefixtures("slow_servers")
@pytest.mark.parametrize("num_kills", [4, pytest.param(100, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_every_epoch_comes_whole_and_in_order_whoever_is_killed(corpus, make_server, embedded, joined, num_kills):
    """Epochs are read one after the other until the last kill; each is compared with an undisturbed one."""
    chance, over, failures, num_epochs = random.Random(5), threading.Event(), [], []

    def read(target, rank, worker):
        try:
            with connect(target, retry=PATIENT) as client:
                for epoch in itertools.count():
                    if over.is_set() and epoch:
                        break
                    place = {"epoch": epoch, "seed": 3, "rank": rank, "worker": worker, "topology": SHAPE}
                    came, expected = (joined(one.stream_bins("rows", **place)) for one in (client, embedded))
                    assert came == expected, place
                num_epochs.append(epoch)
        except BaseException as error:
            failures.append(error)

    with make_server(corpus.root) as first, make_server(corpus.root) as second:
        target = f"{first.target},{second.target}"
        readers = [
            threading.Thread(target=read, args=(target, rank, worker), daemon=True)
            for rank, worker in itertools.product(range(SHAPE.world_size), range(SHAPE.workers_per_rank))
        ]
        for reader in readers:
            reader.start()
        for _ in range(num_kills):
            over.wait(chance.uniform(0.02, 0.5))
            victim = chance.choice((first, second))
            victim.kill()
            victim.start()
        over.set()
        for reader in readers:
            reader.join(120)
        assert not failures
        assert len(num_epochs) == len(readers)
        assert min(num_epochs) >= 1
