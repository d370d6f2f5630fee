"""Two replicas that are killed at random moments, one after the other, under a whole run."""

import itertools
import random
import threading
from collections import Counter

import pytest
from tests.faulty_server import Faults

from packhorse.client import RetryPolicy, connect
from packhorse.topology import Topology

pytestmark = pytest.mark.realtime

PATIENT = RetryPolicy(deadline_seconds=120, first_delay_seconds=0.02, most_delay_seconds=0.5)
SLOW = Faults(block_bytes=512, block_seconds=0.01)  # every kill finds streams on their way
SHAPE = Topology(world_size=4, workers_per_rank=2, batch_size=2)


@pytest.mark.parametrize(
    ("name", "num_kills"),
    [("named", 2), pytest.param("rows", 100, marks=[pytest.mark.long, pytest.mark.timeout(1800)])],
)
def test_every_epoch_comes_whole_and_in_order_whoever_is_killed(corpus, make_server, embedded, joined, name, num_kills):
    """Epochs are read one after the other until the last kill; each is compared with an undisturbed one."""
    chance, over, failures, num_epochs = random.Random(5), threading.Event(), [], []

    def read(target, rank, worker):
        try:
            with connect(target, retry=PATIENT) as client:
                for epoch in itertools.count():
                    if over.is_set() and epoch:
                        break
                    place = {"epoch": epoch, "seed": 3, "rank": rank, "worker": worker, "topology": SHAPE}
                    came, expected = (joined(one.stream_bins(name, **place)) for one in (client, embedded))
                    assert came == expected, place
                num_epochs.append(epoch)
        except BaseException as error:
            failures.append(error)

    with make_server(corpus.root, faults=SLOW) as first, make_server(corpus.root, faults=SLOW) as second:
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


@pytest.mark.long
def test_nobody_stampedes_when_every_replica_was_gone(corpus, make_server, embedded, joined):
    """200 clients read, both replicas die, one comes back: everyone goes on, and not all in the same moment."""
    num_clients, may_go_on = 200, threading.Event()
    expected, came = joined(embedded.stream_bins("named")), {}

    def read(target, number):
        with connect(target, retry=PATIENT) as client:
            stream = client.stream_bins("named")
            blocks = [next(stream)]
            began.release()
            may_go_on.wait(60)
            came[number] = joined([*blocks, *stream])

    began = threading.Semaphore(0)
    with make_server(corpus.root, faults=SLOW) as first, make_server(corpus.root, faults=SLOW) as second:
        target = f"{first.target},{second.target}"
        readers = [threading.Thread(target=read, args=(target, number), daemon=True) for number in range(num_clients)]
        for reader in readers:
            reader.start()
        for _ in readers:
            assert began.acquire(timeout=60)
        first.kill()
        second.kill()
        may_go_on.set()
        before = len(second.log())
        second.start()
        for reader in readers:
            reader.join(120)
        assert came == dict.fromkeys(range(num_clients), expected)
        opened = [line.split()[1] for line in second.log()[before:].splitlines() if "stream opened" in line]
        tenths = Counter(moment[:-2] for moment in opened)  # 05:10:02,1
        print(f"{len(opened)} streams opened again, in the busiest tenth of a second {max(tenths.values())}")
        assert max(tenths.values()) < 0.8 * num_clients
