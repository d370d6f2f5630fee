"""The example over Grain: exactly once across a change of ranks, and the rows that torchtitan's own loader wants."""

import json
import sys
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from itertools import islice
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from packhorse.client import BatchFormat, PackedBins

pytest.importorskip("grain", reason="grain is not installed")
EXAMPLE = Path(__file__).parents[2] / "client" / "examples" / "grain_loader.py"


@pytest.fixture(scope="module")
def example():
    spec = spec_from_file_location("grain_loader", EXAMPLE)
    module = module_from_spec(spec)
    sys.modules["grain_loader"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["grain_loader"]


def sequences_in(batches):
    """Counter of what each sequence predicts: its labels, all but -100."""
    found = Counter()
    for inputs, labels in batches:
        begins = np.flatnonzero(inputs["positions"].numpy() == 0)
        for own in np.split(labels.numpy(), begins[1:]):
            if (own >= 0).any():
                found[tuple(own[own >= 0].tolist())] += 1
    return found


def test_ranks_change_between_two_checkpoints_and_every_sequence_comes_once(example, corpus):
    def loaders(world_size, batch_size):
        for rank in range(world_size):
            bins = PackedBins(
                f"embedded:{corpus.root}",
                "rows",
                corpus.megatron,
                seed=5,
                num_bins_multiple_of=world_size * batch_size,
                output="numpy",
                batch=BatchFormat(shift_labels=True),
            )
            yield example.ElasticLoader(bins, batch_size=batch_size, rank=rank, world_size=world_size)

    first = list(loaders(2, 4))
    seen = [batch for loader in first for batch in islice(loader, 6)]
    states = [json.dumps(loader.state_dict()) for loader in first]
    assert len(set(states)) == 1
    assert json.loads(states[0])["position"] == 48
    rest = []
    for loader in loaders(3, 2):
        loader.load_state_dict(json.loads(states[0]))
        rest += loader
    whole = Counter(tuple(tokens[1:].tolist()) for tokens in corpus.sequences if len(tokens) > 1)
    assert sequences_in([*seen, *rest]) == whole


def test_torchtitans_loader_gets_its_rows_by_rank(example, corpus, monkeypatch):
    data = ModuleType("torchtitan.components.data")
    data.TextSequence = SimpleNamespace
    for name in ("torchtitan", "torchtitan.components"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "torchtitan.components.data", data)
    config = example.PackedBinsConfig(
        target=f"embedded:{corpus.root}", dataset="rows", tokens=str(corpus.megatron) + ".idx", num_epochs=2
    )
    ranks = [
        config.build(context=None, dataset_iteration_policy=SimpleNamespace(seed=5, dp_rank=rank, dp_world_size=2))
        for rank in range(2)
    ]
    rows = [row for dataset in ranks for row in list(dataset)[: len(dataset) // 2]]
    assert {row.input_ids.shape for row in rows} == {(256,)}
    batches = [({"positions": as_tensor(row.positions)}, as_tensor(row.labels)) for row in rows]
    whole = Counter(tuple(tokens[1:].tolist()) for tokens in corpus.sequences if len(tokens) > 1)
    assert sequences_in(batches) == whole


def as_tensor(array):
    return torch.from_numpy(np.ascontiguousarray(array))
