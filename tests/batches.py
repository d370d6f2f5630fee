"""Fixtures for tests of batches: datasets of the shared server, loaders, and what batches must hold."""

import sys
from collections import Counter
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

import pytest
import torch
from tests.flat_words import packed_dataset
from torch.utils.data import DataLoader


@pytest.fixture(scope="session", autouse=True)
def workers_are_not_waited_for():
    """A loader waits five seconds for each worker that it left in the middle, or that raised an error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.2)
        yield


@pytest.fixture
def make_dataset(running_server, corpus, no_launcher):
    """Function: a PackedDataset of the shared server; keywords as PackedDataset's, `name` of the dataset."""

    def make(name="rows", tokens=None, target=running_server.target, **options):
        defaults = {"seed": 3} | ({} if "batch_schedule" in options else {"batch_size": 8})
        defaults |= {"rank": (0, 1)} if not {"rank", "world_size"} & set(options) else {}
        return packed_dataset(target, name, corpus.megatron if tokens is None else tokens, **(defaults | options))

    return make


@pytest.fixture
def module_alone(monkeypatch):
    """Function: one module of an installed package that cannot be imported whole here, for want of CUDA, say.

    Its packages are empty but for their folders, and stand-ins take the part of modules that it imports and that the
    test does not need. Skips where the module is not installed.
    """

    def load(name, *stand_ins):
        first, *inner = name.split(".")
        spec = find_spec(first)
        folder = None if spec is None or spec.origin is None else Path(spec.origin).parent
        if folder is None or not folder.joinpath(*inner).with_suffix(".py").is_file():
            pytest.skip(f"{name} is not installed")
        for depth in range(len(inner)):
            package = ModuleType(".".join([first, *inner[:depth]]))
            package.__spec__, package.__path__ = spec, [str(folder.joinpath(*inner[:depth]))]
            monkeypatch.setitem(sys.modules, package.__name__, package)
        for each in stand_ins:
            monkeypatch.setitem(sys.modules, each, MagicMock())
        monkeypatch.setitem(sys.modules, name, None)  # so that it goes again
        del sys.modules[name]
        return import_module(name)

    return load


@pytest.fixture(scope="session")
def load():
    """Function: a DataLoader; forked workers unless told otherwise."""

    def make(dataset, num_workers=0, **options):
        if num_workers:
            options = {"multiprocessing_context": "fork", "timeout": 60} | options
        return DataLoader(dataset, batch_size=None, num_workers=num_workers, **options)

    return make


@pytest.fixture(scope="session")
def sequences_of():
    """Function: Counter of the token tuples in some batches."""

    def count(batches):
        found = Counter()
        for batch in batches:
            tokens = batch["input_ids"][batch["attention_mask"].bool()].tolist()
            offsets = batch["cu_seqlens"].tolist()
            assert offsets[-1] == len(tokens)
            found.update(tuple(tokens[a:b]) for a, b in pairwise(offsets))
        return found

    return count


@pytest.fixture(scope="session")
def whole(corpus):
    """Function: Counter of the token tuples that an epoch of a dataset holds."""

    def count(name):
        lengths = corpus.lengths(name)
        rows = zip(corpus.ids[name].tolist(), corpus.sequences, strict=False)
        return Counter(tuple(tokens.tolist()[: lengths[number]]) for number, tokens in rows)

    return count


@pytest.fixture(scope="session")
def assert_same_batches():
    """Function: two lists of batches are equal, cursors included."""

    def check(left, right):
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            assert a.keys() == b.keys()
            for name in a:
                assert torch.equal(a[name], b[name]) if torch.is_tensor(a[name]) else a[name] == b[name], name

    return check
