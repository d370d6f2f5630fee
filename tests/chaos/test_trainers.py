"""Trainers and their dataloader workers that are killed at random, and resumed in another shape each time."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from tests.waiting import wait_until

pytestmark = pytest.mark.realtime

MOST_STEPS = 12
"""After so many a trainer waits to be killed: on a busy machine one would have ended its epoch before."""

TRAINER = """
import json, sys, time
from packhorse.client import LoaderOptions, create_packed_dataloader
from packhorse.topology import Topology
options = json.loads(sys.argv[1])
cursor = options.pop("cursor")
target, tokens = options.pop("target"), options.pop("tokens")
most_steps = options.pop("most_steps")
of_rank = LoaderOptions(rank=tuple(options.pop("rank")))
topology = Topology(remainder="empty")
loader = create_packed_dataloader(target, "rows", tokens, seed=4, topology=topology, loader=of_rank, **options)
if cursor is not None:
    loader.load_state_dict(cursor)
for step, batch in enumerate(loader, 1):
    print(json.dumps({"ids": batch["ids"].tolist(), "cursor": batch["cursor"]}), flush=True)
    time.sleep(600 if step == most_steps else 0.02)
print(json.dumps("end"), flush=True)
"""


def children_of(pid):
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def whole_lines(path):
    """What a trainer has written, without a line that it did not finish."""
    written = path.read_text()
    return [json.loads(line) for line in written[: written.rfind("\n") + 1].splitlines()]


def train(folder, options, world_size, chance, is_last):
    """Runs one trainer for each rank until they end, or one of their processes is killed; what each wrote."""
    paths = [folder / f"{chance.random()}" for _ in range(world_size)]
    trainers = []
    for rank, path in enumerate(paths):
        own = options | {"rank": (rank, world_size), "most_steps": None if is_last else MOST_STEPS}
        with path.open("wb") as output, (folder / "stderr").open("ab") as errors:
            command = [sys.executable, "-c", TRAINER, json.dumps(own)]
            trainers.append(subprocess.Popen(command, stdout=output, stderr=errors))
    try:
        wait_until(lambda: all(path.stat().st_size for path in paths) or any(each.poll() for each in trainers), 120)
        assert not any(each.poll() for each in trainers), (folder / "stderr").read_text()
        if not is_last:
            time.sleep(chance.uniform(0, 1))
            victim = chance.choice(trainers)
            workers = children_of(victim.pid)
            os.kill(chance.choice([victim.pid, *workers]), signal.SIGKILL)
            if victim.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    victim.wait(10)
        else:
            for trainer in trainers:
                trainer.wait(120)
    finally:
        for trainer in trainers:  # the job's other ranks go with it
            for child in children_of(trainer.pid):
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            trainer.kill()
            trainer.wait()
    return [whole_lines(path) for path in paths]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_order_goes_on_exactly_in_every_shape(corpus, running_server, embedded, tmp_path):
    chance, cursor, came = random.Random(11), None, []
    num_bins = embedded.get_dataset("rows").num_bins
    for round_number in range(6):
        shape = {"batch_size": chance.randint(1, 4), "num_workers": chance.choice((0, 1, 3))}
        options = {"target": running_server.target, "tokens": str(corpus.megatron), "cursor": cursor, **shape}
        world_size = chance.randint(1, 3)
        ranks = train(tmp_path, options, world_size, chance, is_last=round_number == 5)
        steps = list(zip(*([each for each in rank if each != "end"] for rank in ranks), strict=False))
        for step in steps:  # those that every rank has trained on
            came += [number for batch in step for number in batch["ids"]]
            assert len({json.dumps(batch["cursor"], sort_keys=True) for batch in step}) == 1
        if steps:
            cursor = steps[-1][0]["cursor"]
        if all(rank and rank[-1] == "end" for rank in ranks):
            break
    assert round_number >= 2
    expected = embedded.get_bins("rows", positions=np.arange(num_bins), seed=4)
    assert came == expected.ids.tolist(), (tmp_path / "stderr").read_text()
