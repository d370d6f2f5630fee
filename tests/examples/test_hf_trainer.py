"""examples/hf_trainer.py over gloo: it misses and repeats nothing, learns, and goes on with any number of processes."""

import math
from collections import Counter

import pytest

from packhorse.trainers.transformers import cursor_of_checkpoint

pytestmark = pytest.mark.long


def test_two_processes_then_one_then_three_train_on_every_sequence_once_and_learn(
    run_example, recorded, progressions, tmp_path
):
    flags = ["--epochs", 1, "--output", "run", "--record", "seen"]
    losses = run_example("hf_trainer.py", *flags, "--accumulate", 2, "--stop-after", 4)
    cursor = cursor_of_checkpoint(tmp_path / "run" / "checkpoint-4")
    assert (cursor["epoch"], cursor["position"]) == (0, 4 * 2 * 2 * 4)
    ranks = recorded("seen")
    assert len(ranks) == 2
    assert min(rank.total() for rank in ranks) > 50
    losses += run_example("hf_trainer.py", *flags, "--stop-after", 30, processes=1)
    losses += run_example("hf_trainer.py", *flags, processes=3)
    assert sum(recorded("seen"), Counter()) == progressions.sequences
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0] - 1
