"""NumPy batches of bins that come with tokens: those of PyTorch, without it."""

import subprocess
import sys

import numpy as np
import pytest

from packhorse.client import BatchFormat, PackedDataset, connect
from packhorse.formats.megatron import MaskedTokenWriter
from packhorse.prepare import PlanOptions, prepare
from packhorse.topology import Topology

PLANS = {
    "plain": PlanOptions(max_seq_len=24),
    "aligned": PlanOptions(max_seq_len=24, align=4),
    "pieces": PlanOptions(max_seq_len=12, over_length="split"),
    "cut": PlanOptions(max_seq_len=12, over_length="truncate"),
    "without-last": PlanOptions(max_seq_len=24, extra_tokens=-1),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root, rng = tmp_path_factory.mktemp("numpy"), np.random.default_rng(3)
    with MaskedTokenWriter(root / "tokens", vocab_size=70_000) as writer:
        for length in rng.integers(1, 20, 90):
            writer.append(rng.integers(1, 70_000, length), rng.random(length) < 0.7)
    for name, plan in PLANS.items():
        prepare(root / "tokens.idx", output=root / "sets" / name, plan=plan)
    (root / "sets" / "cut.takedown.toml").write_text("[[redact]]\nids = [4, 7]\nreason = 'asked'\n")
    return root


@pytest.mark.parametrize("name", PLANS)
def test_they_are_those_of_pytorch(root, name):
    target, topology = f"embedded:{root / 'sets'}", Topology(batch_size=3)
    form = BatchFormat(shift_labels=True)
    with connect(target) as client, client.stream_batches(name, seed=2, topology=topology) as stream:
        batches = list(stream)
    expected = list(PackedDataset(target, name, seed=2, batch_size=3, batch=form))
    assert len(batches) == len(expected)
    for mine, theirs in zip(batches, expected, strict=True):
        is_token = theirs["attention_mask"].numpy() == 1
        labels = theirs["labels"].numpy()
        np.testing.assert_array_equal(mine["tokens"], theirs["input_ids"].numpy())
        np.testing.assert_array_equal(mine["segment_ids"] > 0, is_token)
        np.testing.assert_array_equal(mine["segment_ids"][is_token], theirs["sequence_ids"].numpy()[is_token] + 1)
        np.testing.assert_array_equal(mine["positions"][is_token], theirs["position_ids"].numpy()[is_token])
        np.testing.assert_array_equal(mine["loss_mask"], labels != -100)
        np.testing.assert_array_equal(mine["targets"][mine["loss_mask"]], labels[labels != -100])
        assert mine["position"] == theirs["cursor"]["position"]


def test_they_need_no_torch(root):
    script = f"""
import sys
sys.modules["torch"] = None
from packhorse.client import connect
with connect("embedded:{root / "sets"}") as client, client.stream_batches("plain") as batches:
    print(sum(int((batch["segment_ids"] > 0).sum()) for batch in batches))
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    with connect(f"embedded:{root / 'sets'}") as client:
        assert int(found.stdout) == client.get_dataset("plain").own_tokens
