"""examples/ddp.py with two processes over gloo: it misses and repeats nothing, learns, and goes on."""

import math

import pytest
import torch
from tests.examples.conftest import FORKED


def test_two_ranks_train_on_every_sequence_once_and_learn(run_example, recorded, progressions, tmp_path):
    losses = run_example("ddp.py", "--epochs", 1, "--checkpoint", "run.pt", "--record", "seen", launcher=FORKED)
    assert len(losses) > 3
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0] - 1
    ranks = recorded("seen")
    assert len(ranks) == 2
    assert min(rank.total() for rank in ranks) > 300
    assert ranks[0] + ranks[1] == progressions.sequences
    cursor = torch.load(tmp_path / "run.pt", weights_only=True)["cursor"]
    assert cursor["epoch"] == 1  # saved at the end, also between two multiples of --save-every


@pytest.mark.long
def test_goes_on_behind_its_checkpoint_with_another_number_of_ranks(run_example, recorded, progressions, tmp_path):
    flags = ["--epochs", 2, "--checkpoint", "run.pt", "--record", "seen"]
    before = run_example("ddp.py", *flags, "--stop-after", 23)
    cursor = torch.load(tmp_path / "run.pt", weights_only=True)["cursor"]
    assert (cursor["epoch"], cursor["position"]) == (0, 23 * 2 * 4)
    assert sum(rank.total() for rank in recorded("seen")) < progressions.sequences.total()
    after = run_example("ddp.py", *flags, processes=1)
    ranks = recorded("seen")
    assert ranks[0] + ranks[1] == progressions.sequences + progressions.sequences
    assert after[0] < before[0] - 1  # the model was loaded too
    assert after[-1] < after[0]
