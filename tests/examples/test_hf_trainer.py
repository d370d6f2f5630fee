"""examples/hf_trainer.py with two processes over gloo: it misses and repeats nothing, learns, and goes on."""

import json
import math


def test_two_ranks_train_on_every_sequence_once_and_learn(run_example, recorded, progressions):
    losses = run_example("hf_trainer.py", "--epochs", 1, "--output", "run", "--record", "seen")
    assert len(losses) > 3
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0] - 1
    ranks = recorded("seen")
    assert len(ranks) == 2
    assert min(rank.total() for rank in ranks) > 300
    assert ranks[0] + ranks[1] == progressions.sequences


def test_goes_on_behind_its_checkpoint(run_example, recorded, progressions, tmp_path):
    flags = ["--epochs", 2, "--output", "run", "--record", "seen", "--accumulate", 2]
    before = run_example("hf_trainer.py", *flags, "--stop-after", 9)
    cursor = json.loads((tmp_path / "run" / "checkpoint-9" / "cursor.json").read_text())
    assert (cursor["epoch"], cursor["position"]) == (0, 9 * 2 * 2 * 4)
    assert sum(rank.total() for rank in recorded("seen")) < progressions.sequences.total()
    after = run_example("hf_trainer.py", *flags)
    ranks = recorded("seen")
    assert ranks[0] + ranks[1] == progressions.sequences + progressions.sequences
    assert after[-1] < before[0] - 1
