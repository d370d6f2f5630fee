"""Two ranks train, a checkpoint is taken, and one rank goes on: each sequence comes once in an epoch."""

import sys
from collections import Counter
from pathlib import Path

from packhorse.dataset import PlanOptions
from packhorse.formats import MegatronWriter
from packhorse.prepare import prepare
from packhorse.trainers import PackedData
from packhorse.trainers.plain import PlainSteps

root = Path(sys.argv[1])
with MegatronWriter(root / "corpus", vocab_size=100) as writer:
    for _ in range(8):
        writer.append([1, 2, 3])
assert prepare(root / "corpus.idx", output=root / "datasets" / "corpus", plan=PlanOptions(max_seq_len=3)).num_bins == 8
data = PackedData(f"embedded:{root / 'datasets'}", "corpus", root / "corpus.idx", batch_size=1, seed=3, num_workers=0)

ids, state = [], {}
for rank in range(2):
    steps = PlainSteps(data, rank=(rank, 2), num_steps=2)
    ids += [sequence for _, batch in steps for sequence in batch["ids"].tolist()]
    state = steps.state_dict()
assert state["step"] == 2
resumed = PlainSteps(data, rank=(0, 1), num_steps=2 + 4 + 1)
resumed.load_state_dict(state)
rest = [(step, batch["ids"].tolist()) for step, batch in resumed]
assert [step for step, _ in rest] == [2, 3, 4, 5, 6]
ids += [sequence for _, of_step in rest[:4] for sequence in of_step]
assert Counter(ids) == Counter(range(8)), "the last step is of the next epoch"
