"""PackedDataset: the same batches from any number of workers, every sequence once over all ranks."""

import subprocess
import sys
from collections import Counter
from functools import partial
from itertools import islice

import pytest
import torch

from packhorse.client import DigestMismatchError, PackedDataset, RetryPolicy, connect
from packhorse.client.errors import DatasetNotFoundError
from packhorse.client.loading.workers.preemption import protected_fork_server
from packhorse.client.sources import TokenSourceError


@pytest.mark.parametrize("kind", ["megatron", "flat", "tensors"])
def test_tokens_match_the_source_for_every_sequence(make_dataset, corpus, sequences_of, whole, kind):
    tokens = {
        "megatron": corpus.megatron.with_suffix(".idx"),
        "flat": corpus.flat,
        "tensors": [torch.from_numpy(tokens) for tokens in corpus.sequences],
    }[kind]
    dataset = make_dataset(tokens=tokens)
    assert sequences_of(dataset) == whole("rows")


def test_ids_may_be_names_and_sequences_truncated(make_dataset, corpus, sequences_of, whole):
    by_name = dict(zip(corpus.ids["named"].tolist(), corpus.sequences, strict=False))
    assert sequences_of(make_dataset("named", by_name)) == whole("named")
    assert max(map(len, corpus.sequences[:400])) > 96
    assert sequences_of(make_dataset("truncated")) == whole("truncated")


def test_batches_have_their_form(make_dataset):
    dataset = make_dataset(batch_size=5, pad_token_id=59_999)
    batches = list(dataset)
    assert len(batches) == len(dataset)
    for batch in batches:
        for name in ("input_ids", "labels", "position_ids", "attention_mask"):
            assert (batch[name].dtype, batch[name].shape) == (torch.int64, (5, 256))
        assert (batch["sequence_ids"].dtype, batch["cu_seqlens"].dtype) == (torch.int32, torch.int32)
        assert (batch["input_ids"][batch["attention_mask"] == 0] == 59_999).all()
        assert (batch["labels"][batch["attention_mask"] == 0] == -100).all()
        assert list(batch["cursor"]) == ["digest", "seed", "epoch", "position"]
    positions = [batch["cursor"]["position"] for batch in batches]
    num_bins = positions[-1]
    assert positions[:-1] == list(range(5, num_bins, 5))
    shifted = next(iter(make_dataset(batch_size=5, shift_labels=True)))
    inside = shifted["labels"][:, :-1] != -100
    assert torch.equal(shifted["labels"][:, :-1][inside], shifted["input_ids"][:, 1:][inside])


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_any_number_of_forked_workers_gives_the_same_batches(
    make_dataset, load, assert_same_batches, running_server
):  # fmt: skip
    with connect(running_server.target) as parent:  # a process that has used gRPC may fork between its calls
        assert parent.get_dataset("rows").num_sequences == 2000
        expected = list(make_dataset())
        for num_workers in (0, 1, 2, 3):
            loader = load(make_dataset(), num_workers)
            assert len(loader) == len(expected)
            assert_same_batches(list(loader), expected)
        assert parent.get_dataset("rows").num_sequences == 2000


def test_workers_that_begin_anew_give_the_same_batches(make_dataset, load, assert_same_batches, running_server, corpus):
    target = partial(connect, running_server.target, retry=RetryPolicy(deadline_seconds=20))
    dataset = make_dataset(tokens=corpus.flat, target=target)
    loader = load(dataset, 2, multiprocessing_context=protected_fork_server(), persistent_workers=True)
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        assert_same_batches(list(loader), list(make_dataset(epoch=epoch)))


def test_a_forked_child_may_use_the_parent_s_client(client, joined):
    """A worker may be handed a client that its parent has used."""
    import multiprocessing

    expected = joined(client.stream_bins("few"))

    def child(results):
        results.put(joined(client.stream_bins("few")))

    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    process = context.Process(target=child, args=(results,), daemon=True)
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert results.get() == expected
    assert joined(client.stream_bins("few")) == expected


FORKS = """
import os, sys, time
from packhorse.client import connect
for number in range(40):
    with connect(sys.argv[1]) as client:
        client.get_dataset("few")
    child = os.fork()
    if child == 0:
        try:
            with connect(sys.argv[1]) as client:
                client.get_dataset("few")
        finally:
            os._exit(0)
    deadline = time.monotonic() + 20
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            sys.exit(f"child {number} hung")
        time.sleep(0.001)
os._exit(0)
"""


def test_children_forked_right_after_a_client_was_closed_can_connect(running_server):
    done = subprocess.run(
        [sys.executable, "-c", FORKS, running_server.target], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_persistent_workers_follow_set_epoch(make_dataset, load, assert_same_batches):
    dataset = make_dataset(batch_size=16)
    loader = load(dataset, 2, persistent_workers=True)
    for epoch in (0, 1, 5, 5, 2):
        dataset.set_epoch(epoch)
        assert dataset.epoch == epoch
        assert_same_batches(list(loader), list(make_dataset(batch_size=16, epoch=epoch)))


def test_an_epoch_left_early_begins_anew(make_dataset, load, assert_same_batches):
    dataset = make_dataset()
    whole_epoch = list(make_dataset())
    assert_same_batches(list(islice(dataset, 3)), whole_epoch[:3])
    assert_same_batches(list(dataset), whole_epoch)
    dataset = make_dataset()
    loader = load(dataset, 2, persistent_workers=True)
    assert_same_batches(list(islice(loader, 3)), whole_epoch[:3])
    assert_same_batches(list(loader), whole_epoch)


@pytest.mark.parametrize("remainder", ["spread", "empty", "drop", "repeat"])
def test_ranks_and_workers_share_an_epoch(make_dataset, load, sequences_of, whole, remainder):
    came, sizes = Counter(), set()
    for rank in range(2):
        batches = list(load(make_dataset(rank=rank, world_size=2, batch_size=7, remainder=remainder), 2))
        came += sequences_of(batches)
        sizes.add(len(batches))
    assert len(sizes) == 1
    if remainder in ("spread", "empty"):
        assert came == whole("rows")
    elif remainder == "drop":
        assert came < whole("rows")
    else:
        assert came > whole("rows")


def test_independent_ranks_and_workers_go_through_the_epoch_alone(make_dataset, load, sequences_of, whole):
    dataset = make_dataset(mode="independent", rank=1, world_size=2)
    with pytest.raises(TypeError, match="has no length"):
        len(dataset)
    one = list(dataset)
    assert sequences_of(one) == whole("rows")
    both = list(load(dataset, 2))
    assert len(both) == 2 * len(one)
    assert sequences_of(both) == whole("rows") + whole("rows")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_independent_rank_with_one_worker_resumes(make_dataset, load, sequences_of, whole, num_workers):
    options = {"mode": "independent", "rank": 1, "world_size": 2}
    first = list(islice(load(make_dataset(**options), num_workers), 5))
    dataset = make_dataset(**options | {"batch_size": 3})
    dataset.load_state_dict(first[-1]["cursor"])
    assert sequences_of(first) + sequences_of(load(dataset, num_workers)) == whole("rows")


def test_independent_workers_do_not_resume_by_one_cursor(make_dataset, load):
    """Each worker stands somewhere else; a cursor knows of one."""
    options = {"mode": "independent"}
    of_two = next(iter(load(make_dataset(**options), 2)))["cursor"]
    with pytest.raises(ValueError, match=r"cannot say where each of them is; .*StatefulDataLoader.*partition"):
        make_dataset(**options).load_state_dict(of_two)
    dataset = make_dataset(**options)
    dataset.load_state_dict(next(iter(load(make_dataset(**options), 1)))["cursor"])
    with pytest.raises(ValueError, match=r"position 8 is one worker's.*here are 2.*num_workers=1"):
        next(iter(load(dataset, 2)))


def test_all_that_a_batch_knows_of_its_dataset_is_one_answer(make_dataset, running_server):
    """Two answers may come from two servers, one of them with another dataset of that name."""

    def without_get_dataset():
        client = connect(running_server.target)
        client.get_dataset = None
        return client

    assert len(list(islice(make_dataset("truncated", target=without_get_dataset), 3))) == 3


def test_a_killed_server_is_not_noticed_by_a_training_loop(
    corpus, make_server, make_dataset, load, sequences_of, whole
):  # fmt: skip
    with make_server(corpus.root) as server:
        dataset = make_dataset(target=server.target, batch_size=2)
        came = []
        for number, batch in enumerate(load(dataset, 2)):
            came.append(batch)
            if number == 5:
                server.kill()
                server.start()
        assert sequences_of(came) == whole("rows")
        positions = [batch["cursor"]["position"] for batch in came]
        assert positions == sorted(set(positions))


def test_rank_is_found(make_dataset, monkeypatch):
    def found():
        dataset = make_dataset(rank=None)
        return dataset.rank, dataset.topology.world_size

    assert found() == (0, 1)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert found() == (3, 8)
    assert make_dataset(rank=1, world_size=2).rank == 1
    monkeypatch.setattr("packhorse.client.loading.dataset.digest_of_ranks", lambda *_: "")  # there is no group to ask
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 5)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 6)
    assert found() == (5, 6)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    monkeypatch.setenv("RANK", "8")
    with pytest.raises(ValueError, match=r"RANK=8 is outside of \[0, 8\)"):
        found()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"rank": 0}, r"rank must be \(rank, world_size\) or a torch DeviceMesh, got 0"),
        ({"rank": 2, "world_size": 2}, r"rank must be an integer in \[0, 1\], got 2"),
        ({"remainder": "keep"}, "keep"),
        ({"mode": "alone"}, "alone"),
        ({"tokens": 5}, "__getitem__"),
    ],
)
def test_arguments_out_of_range(make_dataset, options, message):
    with pytest.raises(ValueError, match=message):
        make_dataset(**options)


def test_negative_epochs_are_refused(make_dataset):
    with pytest.raises(ValueError, match="epoch must be an integer of at least 0, got -1"):
        make_dataset().set_epoch(-1)
    with pytest.raises(ValueError, match="epoch"):
        next(iter(make_dataset(epoch=-1)))


def test_a_service_s_errors_pass_through_workers(make_dataset, load, corpus):
    for num_workers in (0, 2):
        with pytest.raises(DatasetNotFoundError, match="this server has"):
            list(load(make_dataset("nothing"), num_workers))
        with pytest.raises(TokenSourceError, match="sequence"):
            list(load(make_dataset(tokens=corpus.sequences[:1990]), num_workers))
    dataset = make_dataset()
    dataset.load_state_dict({"digest": "0-1-2-3", "seed": 3, "epoch": 0, "position": 0})
    with pytest.raises(DigestMismatchError, match="counts, options, templates, pools differ"):
        next(iter(dataset))


def test_embedded_gives_the_same_batches(make_dataset, corpus, assert_same_batches, load):
    target = f"embedded:{corpus.root}"
    expected = list(make_dataset())
    assert_same_batches(list(make_dataset(target=target)), expected)
    assert_same_batches(list(load(make_dataset(target=target), 2)), expected)
    assert isinstance(make_dataset(target=target), PackedDataset)
