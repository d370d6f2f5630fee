"""Epoch after epoch, and on from a cursor: the loops that one writes, README's first of all."""

import inspect
import re
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from packhorse.client import DigestMismatchError, LoaderOptions, PackedDataLoader

README = (Path(__file__).parents[3] / "README.md").read_text()
NUM_EPOCHS = 3
FORKED = {"num_workers": 2, "multiprocessing_context": "fork", "timeout": 60}
IN_PROCESS = {"num_workers": 0}
PERSISTENT = FORKED | {"persistent_workers": True}


class StoppedError(Exception):
    """The run was killed."""


class Model:
    """Stands for README's model: notes the ids of each call with their epoch, and is killed in the middle."""

    def __init__(self, names, seen, num_calls):
        self.names, self.seen, self.num_calls = names, seen, num_calls

    def __call__(self, **_):
        if self.num_calls == 0:
            raise StoppedError
        self.num_calls -= 1
        self.seen.setdefault(self.names["epoch"], Counter()).update(self.names["batch"]["ids"].tolist())
        return SimpleNamespace(loss=torch.ones((), requires_grad=True) * 1)

    def state_dict(self):
        return {}


def blocks_of(heading, following):
    section = README[README.index(heading) : README.index(following)]
    return re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)


def test_readme_s_loop_with_readme_s_resume(running_server, corpus, no_launcher, tmp_path, monkeypatch):
    """Killed in the middle of epoch 1, and resumed with larger batches."""
    monkeypatch.chdir(tmp_path)
    (train,) = blocks_of("**Train.**", "**Resume.**")
    (resume,) = blocks_of("**Resume.**", "## What it guarantees")
    for written, here in (
        ('"datasets/corpus"', f'"{running_server.target}", "rows", "{corpus.megatron}"'),
        ("loader.epochs(2)", f"loader.epochs({NUM_EPOCHS})"),
    ):
        assert written in train
        train = train.replace(written, here)
    loop = train.index("for epoch in")
    seen, names = {}, {}
    names["model"] = Model(names, seen, num_calls=80)
    with pytest.raises(StoppedError):
        exec(train, names)
    names["loader"].close()
    assert (torch.load("checkpoint.pt")["cursor"]["epoch"], max(seen)) == (1, 1)
    assert 100 < seen[1].total() < 1900

    names["model"] = Model(names, seen, num_calls=-1)
    exec(train[:loop].replace("batch_size=8", "batch_size=12") + resume + train[loop:], names)
    names["loader"].close()
    assert seen == {epoch: Counter(range(2000)) for epoch in range(NUM_EPOCHS)}


def make_loaders(dataset):
    """(what has `epochs` and `load_state_dict`, what is iterated), of every kind that README promises."""
    yield "dataset", dataset, dataset
    for options in (IN_PROCESS, FORKED, PERSISTENT):
        yield f"DataLoader {options}", dataset, DataLoader(dataset, batch_size=None, **options)
        yield f"StatefulDataLoader {options}", dataset, StatefulDataLoader(dataset, batch_size=None, **options)
    for num_workers in (0, 2):
        loader = PackedDataLoader(dataset, LoaderOptions(num_workers=num_workers, device="cpu"))
        yield f"PackedDataLoader {num_workers}", loader, loader


KINDS = [
    "dataset", *[f"{kind} {options}" for options in (IN_PROCESS, FORKED, PERSISTENT)
    for kind in ("DataLoader", "StatefulDataLoader")], "PackedDataLoader 0", "PackedDataLoader 2",
]  # fmt: skip


@pytest.fixture
def make(make_dataset):
    """Function: (what has `epochs`, what is iterated) of a kind."""

    def of_kind(kind, **options):
        (found,) = [rest for name, *rest in make_loaders(make_dataset(batch_size=64, **options)) if name == kind]
        return found

    return of_kind


@pytest.fixture(scope="module")
def every_id():
    return Counter(range(2000))


def ids_of(batches):
    return Counter(number for batch in batches for number in batch["ids"].tolist())


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_are_whole_and_a_cursor_goes_on_in_its_own(make, kind, every_id):
    data, loader = make(kind)
    seen, cursor = {epoch: Counter() for epoch in range(NUM_EPOCHS)}, None
    for epoch in data.epochs(NUM_EPOCHS):
        assert data.epoch == epoch
        for number, batch in enumerate(loader):
            assert batch["cursor"]["epoch"] == epoch
            seen[epoch] += ids_of([batch])
            cursor = batch["cursor"]
            if epoch == 1 and number == 2:
                break
        if epoch == 1:
            break
    assert seen[0] == every_id

    data, loader = make(kind, world_size=1)
    data.load_state_dict(cursor)
    came = []
    for epoch in data.epochs(NUM_EPOCHS):
        came.append(epoch)
        for batch in loader:
            seen[epoch] += ids_of([batch])
    assert came == [1, 2]
    assert list(seen.values()) == [every_id] * NUM_EPOCHS
    with pytest.warns(UserWarning, match=r"epochs\(3\) goes up to epoch 2, and epoch 3 is the next") as caught:
        assert list(data.epochs(NUM_EPOCHS)) == []
    line_of_loop = inspect.currentframe().f_lineno - 1
    assert (caught[0].filename, caught[0].lineno) == (__file__, line_of_loop)


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_that_were_gone_through_are_not_left_out_silently(make, kind):
    data, loader = make(kind)
    for _ in data.epochs(1):
        assert list(loader)
    with pytest.raises(ValueError, match=r"epochs\(1\) goes up to epoch 0, and epoch 1 is the next; epochs\(2\)"):
        list(data.epochs(1))
    assert list(data.epochs(0)) == []
    assert [epoch for epoch in data.epochs(2) if list(loader)] == [1]


@pytest.mark.parametrize("kind", ["dataset", f"DataLoader {IN_PROCESS}", "PackedDataLoader 0", "PackedDataLoader 2"])
def test_iterations_go_through_epochs_by_themselves(make, kind, every_id):
    data, loader = make(kind)
    for epoch in range(NUM_EPOCHS):
        batches = [batch for batch in loader]  # noqa: C416 (list would ask for a length)
        assert {batch["cursor"]["epoch"] for batch in batches} == {epoch}
        assert ids_of(batches) == every_id
    assert data.state_dict()["epoch"] == NUM_EPOCHS
    assert data.state_dict()["position"] == 0


@pytest.mark.parametrize("options", [FORKED, PERSISTENT])
def test_workers_of_a_plain_loader_refuse_to_repeat_an_epoch_unasked(make, options, every_id):
    data, loader = make(f"DataLoader {options}")
    for _ in range(2):
        assert len(list(islice(loader, 1))) == 1  # a look at the first batch is no epoch
    assert ids_of([batch for batch in loader]) == every_id  # noqa: C416
    with pytest.raises(ValueError, match=r"epoch 0 is finished, and the next.*dataset\.epochs\(num_epochs\)"):
        next(iter(loader))
    for _ in range(2):  # as in validation
        data.set_epoch(0)
        assert ids_of([batch for batch in loader]) == every_id  # noqa: C416


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_before_the_cursor_s_is_refused(make, make_dataset, kind):
    cursor = next(iter(make_dataset(batch_size=64, epoch=1)))["cursor"]
    data, loader = make(kind)
    data.load_state_dict(cursor)
    with pytest.raises(ValueError, match=r"epoch 0 is finished: training was resumed.*epoch 1.*loader\.epochs"):
        data.set_epoch(0)
    data.set_epoch(1)  # keeps the position
    assert next(iter(loader))["cursor"]["position"] == 128
    data.set_epoch(2)
    with pytest.raises(ValueError, match="epoch 1 is finished"):
        data.set_epoch(1)
    data.load_state_dict(cursor)  # starts over on purpose
    assert data.epoch == 1


@pytest.mark.parametrize("kind", ["dataset", "PackedDataLoader 2", f"DataLoader {PERSISTENT}"])
def test_a_loop_s_body_may_go_back_to_a_cursor(make, kind, every_id):
    """As after a spike in the loss: what came since is trained on again, and the epoch is whole."""
    data, loader = make(kind)
    seen, cursors = Counter(), []
    for epoch in data.epochs(1):
        for batch in loader:
            cursors.append(batch["cursor"])
            if len(cursors) == 4:
                data.load_state_dict(cursors[1])
                break
            if len(cursors) != 3:
                seen += ids_of([batch])
        assert epoch == 0
    assert seen == every_id


@pytest.mark.parametrize("kind", ["dataset", "PackedDataLoader 0", "PackedDataLoader 2", f"DataLoader {PERSISTENT}"])
def test_an_epoch_cut_short_is_followed_by_the_next(make, kind):
    data, loader = make(kind)
    came = [(epoch, batch["cursor"]["epoch"]) for epoch in data.epochs(4) for batch in islice(loader, 2)]
    assert came == [(epoch, epoch) for epoch in range(4) for _ in range(2)]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("taken", [3, 10**9])
def test_a_stateful_loader_s_own_state_goes_on_with_the_epochs(make, every_id, num_workers, taken):
    """Its main process loads nothing; the workers do, and `epochs` goes on behind them."""
    options = FORKED if num_workers else IN_PROCESS
    data, loader = make(f"StatefulDataLoader {options}")
    seen, state = Counter(), None
    for _ in data.epochs(1):
        for batch in islice(loader, taken):
            seen += ids_of([batch])
        state = loader.state_dict()
    data, loader = make(f"StatefulDataLoader {options}")
    loader.load_state_dict(state)
    for _ in data.epochs(NUM_EPOCHS):
        for batch in loader:
            seen += ids_of([batch])
    assert seen == Counter(dict.fromkeys(every_id, NUM_EPOCHS))


def test_a_later_epoch_must_be_of_the_same_dataset(make_dataset, corpus):
    dataset = make_dataset(target=f"embedded:{corpus.root}")
    assert {batch["cursor"]["digest"] for batch in dataset} == {dataset.state_dict()["digest"]}
    dataset.run = replace(dataset.run, dataset="few")
    with pytest.raises(DigestMismatchError):
        next(iter(dataset))
