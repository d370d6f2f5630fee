"""A StatefulDataLoader's state goes on under any topology, or says how it would."""

from collections import Counter
from itertools import islice

import pytest
from tests.flat_words import packed_dataset
from torchdata.stateful_dataloader import StatefulDataLoader

from packhorse.trainers.torchdata import PackedStatefulDataLoader

EVERY_ID = Counter(range(2000))
TOPOLOGIES = [  # world size, batch size, workers
    (1, 16, 2),
    (2, 8, 0),
    (3, 4, 3),
]


@pytest.fixture
def dataset(corpus):
    def make(rank=0, world_size=1, batch_size=16, **options):
        topology = {"rank": rank, "world_size": world_size, "batch_size": batch_size}
        return packed_dataset(f"embedded:{corpus.root}", "rows", corpus.megatron, **({"seed": 3} | topology | options))

    return make


def of_workers(num_workers):
    started = {"multiprocessing_context": "fork", "timeout": 60} if num_workers else {}
    return {"batch_size": None, "num_workers": num_workers, **started}


def ids_of(batches):
    return sum((Counter(batch["ids"].tolist()) for batch in batches), Counter())


@pytest.mark.parametrize("given_to", ["the loader", "the dataset"])
@pytest.mark.parametrize("every_n_steps", [1, pytest.param(3, marks=pytest.mark.long)])
def test_a_state_goes_on_under_every_topology(dataset, given_to, every_n_steps):
    """From each to the next, a few batches each, to the end of the second epoch."""
    state, seen = None, {0: Counter(), 1: Counter()}
    for world_size, batch_size, num_workers in [*TOPOLOGIES, TOPOLOGIES[0], (1, 32, 2)]:
        states, is_last = [], batch_size == 32
        for rank in range(world_size):
            data = dataset(rank, world_size, batch_size)
            loader = PackedStatefulDataLoader(data, **of_workers(num_workers), snapshot_every_n_steps=every_n_steps)
            if state is not None:
                (loader if given_to == "the loader" else data).load_state_dict(state)
            for _ in data.epochs(2):
                batches = list(islice(loader, None if is_last else 5))
                for batch in batches:
                    seen[batch["cursor"]["epoch"]] += Counter(batch["ids"].tolist())
                if not is_last:
                    states.append(loader.state_dict())
                    break
        assert all(each.keys() == states[0].keys() for each in states)
        state = states[-1] if states else None
    assert seen == {0: EVERY_ID, 1: EVERY_ID}


@pytest.mark.parametrize(("saved", "loaded"), [(2, 0), (0, 3), (2, 3)])
def test_an_epoch_s_end_is_followed_by_the_next(dataset, saved, loaded):
    loader = PackedStatefulDataLoader(dataset(batch_size=64), **of_workers(saved))
    assert ids_of(list(loader)) == EVERY_ID
    data = dataset(batch_size=100)
    again = PackedStatefulDataLoader(data, **of_workers(loaded))
    again.load_state_dict(loader.state_dict())
    assert data.epoch == 1
    assert ids_of(list(again)) == EVERY_ID


def test_within_an_optimizer_step_the_same_topology_goes_on(dataset):
    options = {"balance": "micro-step", "accumulation": 4, "batch_size": 8}
    whole = [batch["cursor"] for batch in dataset(**options)]
    for every_n_steps in (1, 4):
        loader = PackedStatefulDataLoader(dataset(**options), **of_workers(2), snapshot_every_n_steps=every_n_steps)
        assert len(list(islice(loader, 6))) == 6
        again = PackedStatefulDataLoader(dataset(**options), **of_workers(0))
        again.load_state_dict(loader.state_dict())
        assert [batch["cursor"] for batch in again] == whole[6:]


@pytest.mark.parametrize("num_workers", [1])
def test_torchdata_s_own_loader_with_other_workers_names_the_way_out(dataset, num_workers):
    loader = StatefulDataLoader(dataset(), **of_workers(2))
    next(iter(loader))
    other = StatefulDataLoader(dataset(), **of_workers(num_workers))
    other.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match=rf"with 2 workers, now there are {num_workers}; .*dataset.load_state_dict"):
        next(iter(other))


def test_what_is_no_state_of_ours_is_refused(dataset):
    with pytest.raises(ValueError, match="StatefulDataLoader over something else than a PackedDataset"):
        dataset().load_state_dict(StatefulDataLoader([1, 2, 3]).state_dict())
    of_one = {"dataset_state": dataset(mode="independent").state_dict()}
    of_loader = {
        "_snapshot": {"_worker_snapshots": {"worker_0": of_one, "worker_1": of_one}},
        "_steps_since_snapshot": 1,
        "_iterator_finished": False,
    }
    with pytest.raises(ValueError, match="cannot say where each of them is"):
        dataset(mode="independent").load_state_dict(of_loader)
