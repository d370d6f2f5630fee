"""The arithmetic of cursors, against counting steps one by one."""

import pytest

from packhorse.client.streams.cursor import Resume, as_worker_state, topology_facts
from packhorse.topology import Topology

SEED = 3


def loader_state(worker, num_since):
    """A StatefulDataLoader's state: what its only worker recorded, and batches since then."""
    return {
        "_snapshot": {"_worker_snapshots": {"worker_0": {"dataset_state": worker}}},
        "_steps_since_snapshot": num_since,
        "_iterator_finished": False,
    }


def counted(position, steps_into, num_since, topology):
    """Where a run stands after some steps, counted one by one."""
    for _ in range(num_since):
        steps_into += 1
        if steps_into == topology.steps_per_optimizer_step:
            steps_into, position = 0, position + topology.bins_per_optimizer_step
    return position, steps_into


@pytest.mark.parametrize(
    "topology",
    [
        Topology(world_size=4, batch_size=2),
        Topology(world_size=4, batch_size=2, accumulation=3, balance="micro-step"),
        Topology(world_size=2, batch_size=1, accumulation=5, balance="optimizer-step"),
    ],
    ids=["in order", "micro-step", "optimizer-step"],
)
def test_batches_since_a_snapshot_are_counted(topology):
    facts = topology_facts(topology)
    position = 7 * topology.bins_per_optimizer_step
    for steps_into in range(topology.steps_per_optimizer_step):
        for num_since in range(12):
            cursor = {"digest": "d", "seed": SEED, "epoch": 1, "position": position}
            cursor |= {"steps_into_optimizer_step": steps_into} if steps_into else {}
            worker = as_worker_state(cursor, 0, 1, facts)
            resume = Resume.from_state(loader_state(worker, num_since), seed=SEED, topology=topology)
            at = counted(position, steps_into, num_since, topology)
            assert (resume.epoch, resume.position, resume.first_step) == (1, *at), (steps_into, num_since)


def test_another_topology_begins_the_optimizer_step_again():
    topology = Topology(world_size=4, batch_size=2, accumulation=3, balance="micro-step")
    cursor = {"digest": "d", "seed": SEED, "epoch": 0, "position": 48, "steps_into_optimizer_step": 2}
    cursor["topology"] = topology_facts(topology)
    assert Resume.from_state(cursor, seed=SEED, topology=topology).first_step == 2
    other = Topology(world_size=2, batch_size=4, accumulation=3, balance="micro-step")
    resume = Resume.from_state(cursor, seed=SEED, topology=other)
    assert (resume.position, resume.first_step) == (48, 0)


def test_the_loader_s_furthest_worker_counts():
    topology = Topology(world_size=2, batch_size=4, workers_per_rank=2)
    facts = topology_facts(topology)
    states = [
        as_worker_state({"digest": "d", "seed": SEED, "epoch": 0, "position": position}, 0, 2, facts)
        for position in (80, 96)
    ]
    state = loader_state(states[0], 0)
    state["_snapshot"]["_worker_snapshots"]["worker_1"] = {"dataset_state": states[1]}
    assert Resume.from_state(state, seed=SEED, topology=topology).position == 96


@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_cursor_with_a_whole_optimizer_step_done_is_refused(accumulation):
    """Without a balance every step is an optimizer step: a cursor that counts some would silently leave them out."""
    topology = Topology(world_size=4, accumulation=accumulation, balance="none" if accumulation == 1 else "micro-step")
    cursor = {"digest": "d", "seed": SEED, "epoch": 0, "position": 48, "steps_into_optimizer_step": accumulation}
    cursor["topology"] = topology_facts(topology)
    with pytest.raises(ValueError, match="steps_into_optimizer_step is"):
        Resume.from_state(cursor, seed=SEED, topology=topology)
