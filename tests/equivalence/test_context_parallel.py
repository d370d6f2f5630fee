"""Dynamic context parallelism changes only the speed: four gloo ranks get the gradients of each sequence alone."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from packhorse.prepare import PlanOptions, prepare

SCRIPT = Path(__file__).with_name("context_ranks.py")


@pytest.mark.long
@pytest.mark.parametrize(
    ("tokens_per_rank", "ranks", "layout", "wait"),
    [
        (32, 4, "zigzag", "micro-step"),
        (64, 2, "zigzag", "micro-step"),
        (128, 4, "blocks", "micro-step"),
        (32, 4, "zigzag", "step"),
        (64, 2, "zigzag", "step"),
    ],
)
def test_gradients_are_those_of_each_sequence_alone(
    tmp_path: Path, tokens_per_rank: int, ranks: int, layout: str, wait: str
) -> None:
    most = tokens_per_rank * ranks
    lengths = np.clip(np.random.default_rng(5).lognormal(3, 1.1, 40), 2, most).astype(int)
    lengths[:3] = most - 7, most // 2 - 3, most // 2
    (tmp_path / "lengths.json").write_text(json.dumps(lengths.tolist()))
    options = PlanOptions(max_seq_len=most, tokens_per_rank=tokens_per_rank, align=2 * ranks)
    prepare(lengths=lengths, output=tmp_path / "long", plan=options)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", str(SCRIPT)]
    arguments = [str(tmp_path), str(tokens_per_rank), str(ranks), layout, wait]
    ended = subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[ended.stderr.find("Traceback") :][:3000]
    seen = [tuple(pair) for rank in range(4) for pair in json.loads((tmp_path / f"seen{rank}.json").read_text())]
    assert Counter(id for id, _ in seen) == Counter(range(len(lengths)))
    assert {size for _, size in seen} == {1 << bits for bits in range(ranks.bit_length())}
    assert json.loads((tmp_path / "off.json").read_text()) < 1e-5
