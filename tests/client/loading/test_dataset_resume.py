"""Checkpoints: a batch's cursor, and what a StatefulDataLoader saves."""

import io
import json
from collections import Counter
from itertools import islice

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader


@pytest.mark.parametrize("remainder", ["spread", "empty"])
def test_every_batch_s_cursor_resumes_under_any_topology(
    make_dataset, corpus, sequences_of, whole, remainder
):  # fmt: skip
    tokens = dict(zip(corpus.ids["named"].tolist(), corpus.sequences, strict=False))

    def ranks(world_size, batch_size):
        return [
            make_dataset("named", tokens, rank=r, world_size=world_size, batch_size=batch_size, remainder=remainder)
            for r in range(world_size)
        ]

    first = [list(dataset) for dataset in ranks(2, 3)]
    assert len(first[0]) > 8
    for step in range(len(first[0])):
        cursor = first[0][step]["cursor"]
        assert first[1][step]["cursor"] == cursor
        consumed = sequences_of(first[0][: step + 1] + first[1][: step + 1])
        for world_size, batch_size in ((1, 4), (3, 1)):
            rest = Counter()
            for dataset in ranks(world_size, batch_size):
                dataset.load_state_dict(cursor)
                num_batches = len(dataset)
                batches = list(dataset)
                assert num_batches == len(batches)
                rest += sequences_of(batches)
            assert consumed + rest == whole("named")


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_what_workers_fetched_ahead_is_not_in_the_cursor(make_dataset, load, sequences_of, whole):
    """Consumes with two workers, resumes with three, then with none, under another batch size each time."""
    consumed = []
    cursor = None
    for batch_size, num_workers, num_batches in ((4, 2, 11), (6, 3, 10), (5, 0, 10**9)):
        dataset = make_dataset(batch_size=batch_size)
        if cursor is not None:
            dataset.load_state_dict(cursor)
        loader = load(dataset, num_workers, **({"prefetch_factor": 4} if num_workers else {}))
        for batch in islice(loader, num_batches):
            consumed.append(batch)
            cursor = batch["cursor"]
    assert sequences_of(consumed) == whole("rows")


def test_a_cursor_survives_every_checkpoint(make_dataset, assert_same_batches, tmp_path):
    batches = list(make_dataset())
    cursor = batches[7]["cursor"]
    file = io.BytesIO()
    torch.save({"model": torch.zeros(2), "data": cursor}, file)
    file.seek(0)
    for loaded in (json.loads(json.dumps(cursor)), torch.load(file, weights_only=True)["data"]):
        dataset = make_dataset()
        dataset.load_state_dict(loaded)
        assert_same_batches(list(dataset), batches[8:])


def test_a_resumed_epoch_is_kept_by_set_epoch_and_the_next_is_whole(make_dataset, load, assert_same_batches):
    epochs = [list(make_dataset(epoch=epoch)) for epoch in (2, 3)]
    for num_workers in (0, 2):
        dataset = make_dataset()
        dataset.load_state_dict(epochs[0][4]["cursor"])
        assert dataset.epoch == 2
        assert len(dataset) == len(epochs[0]) - 5
        loader = load(dataset, num_workers)
        for epoch, expected in ((2, epochs[0][5:]), (3, epochs[1])):  # a loop `for epoch in range(dataset.epoch, 4)`
            dataset.set_epoch(epoch)
            assert_same_batches([batch for batch in loader], expected)  # noqa: C416 (list would ask for a length)


def test_a_finished_epoch_s_cursor_has_nothing_left(make_dataset):
    dataset = make_dataset()
    batches = list(dataset)
    dataset.load_state_dict(batches[-1]["cursor"])
    assert len(dataset) == 0
    assert list(dataset) == []


def test_state_dict_without_workers(make_dataset, assert_same_batches):
    batches = list(make_dataset())
    dataset = make_dataset()
    fresh = dataset.state_dict()
    iterator = iter(dataset)
    for number in range(len(batches)):
        next(iterator)
        state = json.loads(json.dumps(dataset.state_dict()))
        assert batches[number]["cursor"].items() <= state.items()
        other = make_dataset()
        other.load_state_dict(state)
        if number % 10 == 0 or number == len(batches) - 1:
            assert_same_batches(list(other), batches[number + 1 :])
    dataset.load_state_dict(fresh)
    assert_same_batches(list(dataset), batches)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("taken", [1, 6, 17])
def test_a_stateful_loader_goes_on_where_it_was(make_dataset, assert_same_batches, num_workers, taken):
    options = {"batch_size": None, "num_workers": num_workers}
    if num_workers:
        options |= {"multiprocessing_context": "fork", "timeout": 60}
    loader = StatefulDataLoader(make_dataset(epoch=1), **options)
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)
    state = loader.state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    rest = list(iterator)
    assert len(rest) > 10

    resumed = StatefulDataLoader(make_dataset(), **options)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert_same_batches(list(resumed), rest)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_finished_epoch_s_state_leaves_the_next_to_set_epoch(make_dataset, assert_same_batches, num_workers):
    options = {"batch_size": None, "num_workers": num_workers}
    if num_workers:
        options |= {"multiprocessing_context": "fork", "timeout": 60}
    first = make_dataset(batch_size=32)
    loader = StatefulDataLoader(first, **options)
    first.set_epoch(1)
    assert sum(1 for _ in loader) > 10
    state = loader.state_dict()

    dataset = make_dataset(batch_size=32)
    resumed = StatefulDataLoader(dataset, **options)
    resumed.load_state_dict(state)
    for epoch in (2, 3):
        dataset.set_epoch(epoch)
        batches = [batch for batch in resumed]  # noqa: C416 (list would ask for a length)
        assert_same_batches(batches, list(make_dataset(batch_size=32, epoch=epoch)))


def test_states_that_do_not_fit(make_dataset):
    batch = next(iter(make_dataset()))
    cursor = batch["cursor"]
    dataset = make_dataset()
    for name in cursor:
        with pytest.raises(ValueError, match=f"not a cursor: {name} missing"):
            dataset.load_state_dict({key: value for key, value in cursor.items() if key != name})
    with pytest.raises(ValueError, match="digest, seed, epoch, position missing"):
        dataset.load_state_dict({})
    with pytest.raises(ValueError, match=r"saved under seed 3, this dataset has seed 4"):
        make_dataset(seed=4).load_state_dict(cursor)
    state = dataset.state_dict()
    with pytest.raises(ValueError, match=r"saved with 8 bins in a step \(.*\), now there are 16 .*'cursor'"):
        make_dataset(world_size=2).load_state_dict(state)
    dataset.load_state_dict(cursor | {"position": 10**6})
    with pytest.raises(ValueError, match="start_position"):
        next(iter(dataset))
