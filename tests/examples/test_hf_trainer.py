"""examples/hf_trainer.py with two processes over gloo: it misses and repeats nothing, learns, and goes on."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

EXAMPLES = str(Path(__file__).parents[2] / "client" / "examples")


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


def test_another_number_of_processes_is_refused(tmp_path, monkeypatch):
    """The Trainer would begin another epoch than the cursor's."""
    monkeypatch.syspath_prepend(EXAMPLES)
    hf_trainer = pytest.importorskip("hf_trainer")
    args = SimpleNamespace(
        world_size=2, per_device_train_batch_size=4, gradient_accumulation_steps=2, output_dir=tmp_path
    )
    state = SimpleNamespace(is_world_process_zero=True, global_step=7)
    (tmp_path / "checkpoint-7").mkdir()
    loaded = []
    loader = SimpleNamespace(state_dict=lambda: {"epoch": 0, "position": 112}, load_state_dict=loaded.append)
    callback = hf_trainer.CursorCallback(loader, str(tmp_path / "checkpoint-7"), None)
    callback.on_save(args, state, None)
    callback.on_train_begin(args, state, None)
    assert loaded == [{"epoch": 0, "position": 112, "bins_per_step": 16}]
    args.world_size = 1
    with pytest.raises(SystemExit, match=r"16 bins in a step, now there are 8.*as many processes"):
        callback.on_train_begin(args, state, None)
    assert len(loaded) == 1
