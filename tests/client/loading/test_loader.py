"""create_packed_dataloader: the dataset's batches through workers and prefetcher, and workers that do not stall."""

import multiprocessing
import os
import sys
import threading
from functools import partial
from importlib.util import find_spec
from itertools import islice
from multiprocessing import forkserver

import pytest
import torch
from tests import scripts

from packhorse.client import (
    BatchFormat,
    LoaderOptions,
    PackedDataLoader,
    PackedDataset,
    RetryPolicy,
    connect,
    create_packed_dataloader,
)
from packhorse.client._ask_in_child import ask_in_child
from packhorse.client.errors import DatasetNotFoundError
from packhorse.client.loading.workers.preemption import FORK_SERVER_MODULE, protected_fork_server
from packhorse.client.sources import TokenSourceError
from packhorse.client.transport import grpc_channels as _grpc


@pytest.fixture
def make_loader(make_dataset):
    """Function: a PackedDataLoader of `make_dataset(**options)`, closed in the end."""
    made = []

    def make(num_workers=2, **options):
        made.append(PackedDataLoader(make_dataset(**options), LoaderOptions(num_workers=num_workers, device="cpu")))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def without_grpc(monkeypatch):
    """As in a process that has not used gRPC; what it really has used stays."""
    monkeypatch.setattr(_grpc, "_ANCHORS", [])


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_yields_the_dataset_s_batches_epoch_by_epoch(make_loader, make_dataset, assert_same_batches, num_workers):
    batches = make_loader(num_workers, batch_size=16)
    for epoch in (0, 1, 4):
        batches.set_epoch(epoch)
        assert batches.epoch == epoch
        expected = list(make_dataset(batch_size=16, epoch=epoch))
        assert len(batches) == len(expected)
        assert_same_batches(list(batches), expected)


def test_one_call_makes_dataset_and_loader(running_server, corpus, make_dataset, assert_same_batches, no_launcher):
    target = partial(connect, running_server.target, retry=RetryPolicy(deadline_seconds=20))
    batches = create_packed_dataloader(
        target,
        "rows",
        corpus.megatron,
        batch_size=16,
        seed=3,
        num_workers=1,
        device="cpu",
        batch=BatchFormat(shift_labels=True),
    )
    assert isinstance(batches.dataset, PackedDataset)
    assert_same_batches(list(batches), list(make_dataset(batch_size=16, shift_labels=True)))
    batches.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_state_is_what_was_handed_out_not_what_was_fetched(
    make_loader, make_dataset, assert_same_batches, num_workers
):  # fmt: skip
    expected = list(make_dataset(epoch=1))
    first = make_loader(num_workers)
    first.set_epoch(1)
    assert (first.state_dict()["epoch"], first.state_dict()["position"]) == (1, 0)
    for number, batch in enumerate(islice(first, 5)):
        assert first.state_dict() == batch["cursor"] == expected[number]["cursor"]
    state = first.state_dict()
    second = make_loader(num_workers)
    second.load_state_dict(state)
    assert second.state_dict() == state
    assert (second.epoch, len(second)) == (1, len(expected) - 5)
    for epoch, rest in ((1, expected[5:]), (2, list(make_dataset(epoch=2)))):  # a resumed loop over epochs
        second.set_epoch(epoch)
        assert_same_batches(list(second), rest)
        assert second.state_dict() == rest[-1]["cursor"] | {"epoch": epoch + 1, "position": 0}
    second.set_epoch(3)
    assert (second.state_dict()["epoch"], second.state_dict()["position"]) == (3, 0)


def test_a_state_before_any_batch_resumes_under_any_topology(make_loader):
    fresh = make_loader(0).state_dict()
    other = make_loader(0, batch_size=3)
    other.load_state_dict(fresh)
    assert next(iter(other))["cursor"]["position"] == 3


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_left_early_begins_anew(make_loader, make_dataset, assert_same_batches, num_workers):
    expected = list(make_dataset())
    batches = make_loader(num_workers)
    for taken in (1, 7):
        assert_same_batches(list(islice(batches, taken)), expected[:taken])
    assert_same_batches(list(batches), expected)


def test_close_ends_the_workers_and_another_iteration_starts_others(make_loader, make_dataset, assert_same_batches):
    batches = make_loader()
    expected = list(make_dataset())
    before = set(multiprocessing.active_children())
    for taken in (3, 10**9):
        assert_same_batches(list(islice(batches, taken)), expected[:taken])
        workers = set(multiprocessing.active_children()) - before
        assert len(workers) == 2
        batches.close()
        for worker in workers:
            worker.join(20)
        assert set(multiprocessing.active_children()) <= before
    assert not [thread for thread in threading.enumerate() if thread.name == "packhorse-prefetch"]


def test_presets_keep_their_keys(make_loader, make_dataset):
    batches = list(make_loader(preset="padding-free", batch_size=2))
    for batch, expected in zip(batches, make_dataset(preset="padding-free", batch_size=2), strict=True):
        assert batch.keys() == expected.keys()
        assert torch.equal(batch["input_ids"], expected["input_ids"])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_errors_pass_through(make_loader, corpus, num_workers):
    with pytest.raises(DatasetNotFoundError, match="this server has"):
        next(iter(make_loader(num_workers, name="nothing")))
    with pytest.raises(TokenSourceError, match="sequence"):
        list(make_loader(num_workers, tokens=corpus.sequences[:1990]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": -1}, "num_workers must be an integer of at least 0, got -1"),
        ({"prefetch_factor": 0}, "prefetch_factor must be an integer of at least 1, got 0"),
        ({"depth": 0}, "depth must be an integer of at least 1, got 0"),
    ],
)
def test_arguments_out_of_range(make_dataset, options, message):
    with pytest.raises(ValueError, match=message):
        PackedDataLoader(make_dataset(), LoaderOptions(**options))


def test_workers_are_forked_only_off_a_process_without_grpc(make_loader, client, without_grpc, assert_same_batches):
    def start_method(batches):
        context = batches._data_loader().multiprocessing_context
        return None if context is None else context.get_start_method()

    assert multiprocessing.get_start_method() == "fork"
    forked = make_loader()
    assert start_method(forked) == "fork"
    expected = list(forked)
    assert not _grpc.has_used_grpc()
    with connect(client.target) as own:
        own.get_dataset("few")
    assert _grpc.has_used_grpc()
    served = make_loader()
    assert start_method(served) == "forkserver"
    assert_same_batches(list(served), expected)
    chosen = PackedDataLoader(forked.dataset, LoaderOptions(multiprocessing_context="spawn"))
    assert start_method(chosen) == "spawn"


def test_the_length_is_asked_in_a_child(make_dataset, corpus, without_grpc, running_server, monkeypatch):
    dataset = make_dataset(batch_size=16)
    steps = len(dataset)
    assert steps == sum(1 for _ in make_dataset(batch_size=16, target=f"embedded:{corpus.root}"))
    dataset.load_state_dict({"digest": "", "seed": 3, "epoch": 0, "position": 32})
    assert len(dataset) == steps - 2
    assert len(make_dataset(target=lambda: connect(running_server.target))) > 0
    with pytest.raises(DatasetNotFoundError, match="this server has") as caught:
        len(make_dataset("nothing"))
    assert caught.value.metadata["dataset"] == "nothing"
    assert not _grpc.has_used_grpc()
    with monkeypatch.context() as context:
        context.delattr(os, "fork")
        assert len(make_dataset(batch_size=16)) == steps
    assert _grpc.has_used_grpc()
    monkeypatch.setattr(os, "fork", None)  # is not called any more
    assert len(make_dataset(batch_size=16)) == steps


def test_embedded_targets_are_asked_here(make_dataset, corpus, without_grpc, monkeypatch):
    monkeypatch.setattr(os, "fork", None)
    assert len(make_dataset(target=f"embedded:{corpus.root}")) > 0


class UnpicklableError(Exception):
    def __reduce__(self):
        raise TypeError("not me")


def test_a_child_s_exceptions_and_deaths(without_grpc, monkeypatch):
    fork, children = os.fork, []
    monkeypatch.setattr(os, "fork", lambda: children.append(fork()) or children[-1])
    assert [ask_in_child(os.getpid)] == children
    with pytest.raises(ZeroDivisionError):
        ask_in_child(lambda: 1 // 0)

    def fail():
        raise UnpicklableError("this")

    with pytest.raises(RuntimeError, match="UnpicklableError: this"):
        ask_in_child(fail)
    with pytest.raises(RuntimeError, match="died"):
        ask_in_child(lambda: os._exit(1))
    with pytest.raises(TimeoutError, match="no answer"):
        ask_in_child(threading.Event().wait, timeout_seconds=0.1)
    assert len(children) == 5
    for child in children:
        with pytest.raises(ChildProcessError):  # collected already
            os.waitpid(child, os.WNOHANG)


EPOCHS = """
import multiprocessing, sys, time
from packhorse.client import create_packed_dataloader
from packhorse.client.transport import grpc_channels as _grpc

def main():
    for repeat in range(8):
        batches = create_packed_dataloader(
            sys.argv[1], "rows", sys.argv[2], batch_size=64, seed=repeat, device="cpu")
        assert len(batches) == sum(1 for _ in batches)
        batches.close()
        assert not _grpc.has_used_grpc()
    assert multiprocessing.get_start_method() == "fork"

if __name__ == "__main__":
    main()
"""


def test_forked_workers_do_not_stall_after_the_length_was_asked(running_server, corpus):
    """Each repeat forks off a process that knows its length and opened no channel; a stall would take 20 s."""
    done = scripts.run(EPOCHS, running_server.target, corpus.megatron)
    assert done.returncode == 0, done.stderr


def test_what_the_fork_server_imports_exists():
    protected_fork_server()
    *names, dataset = forkserver._forkserver._preload_modules
    assert dataset in sys.modules
    assert names == [FORK_SERVER_MODULE, "__main__"]
    assert find_spec(FORK_SERVER_MODULE) is not None


def test_a_with_ends_the_workers(make_dataset):
    before = set(multiprocessing.active_children())
    with PackedDataLoader(make_dataset(), LoaderOptions(num_workers=1, device="cpu")) as batches:
        next(iter(batches))
        [worker] = set(multiprocessing.active_children()) - before
    worker.join(20)
    assert not worker.is_alive()
