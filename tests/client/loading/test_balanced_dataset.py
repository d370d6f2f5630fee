"""PackedDataset with a balance: cursors within an optimizer step and at its end, under this topology and others."""

import json
import logging
from collections import Counter

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from packhorse.client import LoaderOptions, PackedDataLoader

BALANCES = ["micro-step", "optimizer-step"]
ACCUMULATION = 3


@pytest.fixture
def ranks(make_dataset, corpus):
    """Function: one balanced dataset of every rank; keywords as PackedDataset's."""
    tokens = dict(zip(corpus.ids["named"].tolist(), corpus.sequences, strict=False))

    def make(balance, world_size=2, batch_size=2, accumulation=ACCUMULATION, **options):
        shape = {"balance": balance, "batch_size": batch_size, "world_size": world_size}
        if balance != "none":  # without one, accumulation is refused
            shape["accumulation"] = accumulation
        return [
            make_dataset("named", tokens, target=f"embedded:{corpus.root}", rank=rank, **shape, **options)
            for rank in range(world_size)
        ]

    return make


@pytest.fixture
def balanced_loader(ranks):
    """Function: a PackedDataLoader of the first rank, balanced by optimizer step; closed in the end."""
    made = []

    def make(num_workers):
        made.append(PackedDataLoader(ranks("optimizer-step")[0], LoaderOptions(num_workers=num_workers, device="cpu")))
        return made[-1]

    yield make
    for each in made:
        each.close()


def some_steps(num_steps):
    """Within and at the ends of the first two optimizer steps, and of the last, which may be short."""
    assert num_steps > 4 * ACCUMULATION
    return [*range(2 * ACCUMULATION), *range(num_steps - ACCUMULATION, num_steps)]


def resumed(datasets, cursor):
    """The batches that every rank still gets behind a cursor."""
    rest = []
    for dataset in datasets:
        dataset.load_state_dict(json.loads(json.dumps(cursor)))
        num_batches = len(dataset)
        batches = list(dataset)
        assert len(batches) == num_batches
        rest.append(batches)
    return rest


@pytest.mark.parametrize("balance", BALANCES)
def test_an_optimizer_step_trains_on_the_same_sequences(ranks, sequences_of, balance):
    balanced, plain = ([list(dataset) for dataset in ranks(name)] for name in (balance, "none"))
    assert len(balanced[0]) == len(balanced[1]) == len(plain[0]) > 4 * ACCUMULATION
    assert [sequences_of(batches) for batches in balanced] != [sequences_of(batches) for batches in plain]
    for first in range(0, len(plain[0]), ACCUMULATION):
        window = slice(first, first + ACCUMULATION)
        shares = [sequences_of(of[0][window] + of[1][window]) for of in (balanced, plain)]
        assert shares[0] == shares[1]


@pytest.mark.parametrize("remainder", ["spread", "empty", "repeat", "drop"])
@pytest.mark.parametrize("balance", BALANCES)
def test_every_batch_s_cursor_goes_on_exactly(ranks, assert_same_batches, caplog, balance, remainder):
    first = [list(dataset) for dataset in ranks(balance, remainder=remainder)]
    num_steps = len(first[0])
    with caplog.at_level(logging.WARNING):
        for step in some_steps(num_steps):
            cursor = first[0][step]["cursor"]
            assert first[1][step]["cursor"] == cursor
            into = (step + 1) % ACCUMULATION if step + 1 < num_steps else 0
            assert cursor.get("steps_into_optimizer_step", 0) == into
            assert ("topology" in cursor) == (into > 0)
            if step + 1 < num_steps:
                assert cursor["position"] == (step + 1 - into) * 4
            for batches, rest in zip(first, resumed(ranks(balance, remainder=remainder), cursor), strict=True):
                assert_same_batches(rest, batches[step + 1 :])
    assert not caplog.records


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("balance", BALANCES)
def test_workers_go_on_within_an_optimizer_step(ranks, load, assert_same_batches, balance, num_workers):
    expected = list(ranks(balance)[1])
    for step in (0, 1, 4, 6):
        dataset = ranks(balance)[1]
        dataset.load_state_dict(expected[step]["cursor"])
        assert_same_batches([batch for batch in load(dataset, num_workers)], expected[step + 1 :])  # noqa: C416


@pytest.mark.parametrize(
    "other",
    [
        {"world_size": 1, "batch_size": 4},
        {"world_size": 3, "batch_size": 1},
        {"accumulation": 2},
        {"cost_linear": 0},
        {"remainder": "empty"},
        {"balance": "none"},
    ],
    ids=str,
)
@pytest.mark.parametrize("balance", BALANCES)
def test_under_another_topology_an_optimizer_step_begins_again(ranks, sequences_of, whole, caplog, balance, other):
    first = [list(dataset) for dataset in ranks(balance)]
    for step in some_steps(len(first[0])):
        cursor = first[0][step]["cursor"]
        done = cursor.get("steps_into_optimizer_step", 0)
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="packhorse.client.streams.cursor"):
            rest = resumed(ranks(**({"balance": balance} | other)), cursor)
        messages = [record.getMessage() for record in caplog.records]
        assert len(messages) == (len(rest) if done else 0)
        for message in messages:
            assert "the optimizer step begins again" in message
            assert f"{done} of its steps come twice" in message
            assert str(cursor["topology"]) in message
        consumed = [batch for batches in first for batch in batches[: step + 1 - done]]
        assert sequences_of(consumed) + sum(map(sequences_of, rest), Counter()) == whole("named")


@pytest.mark.parametrize("balance", BALANCES)
def test_a_cursor_of_an_unbalanced_run_begins_a_balanced_one(ranks, sequences_of, whole, balance):
    first = [list(dataset) for dataset in ranks("none")]
    for step in (0, 3, 7):
        rest = resumed(ranks(balance, world_size=3), first[0][step]["cursor"])
        consumed = [batch for batches in first for batch in batches[: step + 1]]
        assert sequences_of(consumed) + sum(map(sequences_of, rest), Counter()) == whole("named")


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("taken", [1, 3, 5])
@pytest.mark.parametrize("balance", BALANCES)
def test_a_stateful_loader_goes_on_where_it_was(ranks, assert_same_batches, balance, taken, num_workers):
    options = {"batch_size": None, "num_workers": num_workers}
    if num_workers:
        options |= {"multiprocessing_context": "fork", "timeout": 60}
    loader = StatefulDataLoader(ranks(balance)[0], **options)
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)
    state = loader.state_dict()
    rest = list(iterator)
    assert len(rest) > 5
    again = StatefulDataLoader(ranks(balance)[0], **options)
    again.load_state_dict(state)
    assert_same_batches(list(again), rest)


@pytest.mark.parametrize(
    "other", [{"balance": "none"}, {"accumulation": 2}, {"world_size": 1, "batch_size": 4}], ids=str
)
def test_a_worker_s_state_fits_its_own_topology_only(ranks, other):
    """A state counts steps from where its stream began, and these hold other bins under another balance."""
    dataset = ranks("micro-step")[0]
    iterator = iter(dataset)
    next(iterator)
    state = dataset.state_dict()
    fresh = ranks("micro-step")[0]
    fresh.load_state_dict(state)
    for kept in (state, fresh.state_dict()):
        with pytest.raises(ValueError, match=r"saved with 4 bins in a step.*balance resume from a batch's 'cursor'"):
            ranks(**({"balance": "micro-step"} | other))[0].load_state_dict(kept)
    plain = ranks("none")[0]
    next(iter(plain))
    with pytest.raises(ValueError, match="saved with 4 bins in a step"):
        ranks("micro-step")[0].load_state_dict(plain.state_dict())


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_state_without_workers_goes_on_with_some(ranks, load, assert_same_batches):
    """A DataLoader asks worker 0 first, whichever step comes next."""
    for balance in ("none", "micro-step"):
        expected = list(ranks(balance)[0])
        dataset = ranks(balance)[0]
        iterator = iter(dataset)
        for done in range(1, 5):
            next(iterator)
            again = ranks(balance)[0]
            again.load_state_dict(dataset.state_dict())
            loader = load(again, 3)
            assert_same_batches([batch for batch in loader], expected[done:])  # noqa: C416


def test_a_stateful_loader_goes_on_behind_a_cursor_within_an_optimizer_step(ranks, assert_same_batches):
    options = {"batch_size": None, "num_workers": 2, "multiprocessing_context": "fork", "timeout": 60}
    expected = list(ranks("micro-step")[0])
    dataset = ranks("micro-step")[0]
    dataset.load_state_dict(expected[0]["cursor"])
    loader = StatefulDataLoader(dataset, **options)
    iterator = iter(loader)
    assert_same_batches([next(iterator) for _ in range(4)], expected[1:5])
    state = loader.state_dict()
    list(iterator)
    again = StatefulDataLoader(ranks("micro-step")[0], **options)
    again.load_state_dict(state)
    assert_same_batches(list(again), expected[5:])


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_loader_s_state_before_any_batch_stands_where_the_cursor_stood(
    ranks, assert_same_batches, balanced_loader, num_workers
):
    expected = list(ranks("optimizer-step")[0])
    for step in range(4):
        loader = balanced_loader(num_workers)
        cursor = expected[step]["cursor"]
        loader.load_state_dict(cursor)
        assert loader.state_dict() == cursor
        again = balanced_loader(num_workers)
        again.load_state_dict(loader.state_dict())
        assert len(again) == len(expected) - step - 1
        assert_same_batches(list(again), expected[step + 1 :])
