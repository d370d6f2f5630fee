"""Keeps what a release writes, so that every later one is tested against it: `python tests/golden/keep_release.py`.

Owns the small datasets, cursors and states of `tests/golden/VERSION`; tests/integration/test_compatibility.py opens and
serves them. Run it once for each release, before its tag. What it has written is never written again.
"""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from packhorse.client import PackedDataset, connect
from packhorse.prepare import Grouping, PlanOptions, prepare

FOLDER = Path(__file__).parent
NUM_SEQUENCES = 60
LENGTHS = np.random.default_rng(1).integers(1, 17, NUM_SEQUENCES)
LONG = np.where(np.arange(NUM_SEQUENCES) % 10 == 0, 40, LENGTHS)
RUN = {"epoch": 1, "seed": 7}
MIXTURE = """epoch_bins = 30

[[stages]]
until_bins = 50
weights = {plain = 2, pieces = 1}

[[stages]]
by = "tokens"
weights = {plain = 0.3, pieces = 0.7}
"""
TAKEDOWN = """[[redact]]
ids = [3, 5]
token = 0
reason = "asked for"

[[skip]]
positions = "2:4"
"""


class Tokens:
    """A token source: every token of a sequence is its id."""

    def __init__(self, lengths: Any) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, sequence_id: int) -> Any:
        return np.full(self.lengths[sequence_id], sequence_id, dtype=np.int32)


SOURCES: dict[str, Any] = {
    "plain": Tokens(LENGTHS),
    "pieces": Tokens(LONG),
    "pairs": Tokens(LENGTHS),
    "mixed": {"plain": Tokens(LENGTHS), "pieces": Tokens(LONG)},
}


def packed(target: str, name: str, rank: tuple[int, int]) -> PackedDataset:
    """The dataset as a trainer reads it."""
    return PackedDataset(target, name, SOURCES[name], batch_size=2, seed=RUN["seed"], rank=rank)


def bins_of(client: Any, name: str) -> list[Any]:
    """Positions, ids and lengths of an epoch's first bins."""
    with client.stream_bins(name, **RUN) as stream:
        bins = [
            [position, ids.tolist(), lengths.tolist()]
            for block in stream
            for position, (ids, lengths) in zip(block.positions.tolist(), block.bins(), strict=True)
        ]
    return bins[:12]


def main() -> None:
    """Writes the folder of the installed version."""
    folder = FOLDER / version("packhorse")
    data = folder / "data"
    data.mkdir(parents=True)
    prepare(lengths=LENGTHS, output=data / "plain", max_seq_len=16)
    prepare(lengths=LONG, output=data / "pieces", plan=PlanOptions(max_seq_len=16, over_length="split"))
    prepare(lengths=LENGTHS, output=data / "pairs", max_seq_len=32, grouping=Grouping(size=2))
    (data / "plain.takedown.toml").write_text(TAKEDOWN)
    (data / "mixed.mixture.toml").write_text(MIXTURE)

    target = f"embedded:{data}"
    expected = {}
    with connect(target) as client:
        for name in SOURCES:
            dataset = packed(target, name, (1, 2))
            batches = iter(dataset)
            cursor = [next(batches) for _ in range(2)][-1]["cursor"]
            state = dataset.state_dict()
            expected[name] = {
                "digest": client.get_dataset(name).digest,
                "bins": bins_of(client, name),
                "cursor": cursor,
                "state": state,
                "then": next(batches)["input_ids"].tolist(),
            }
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
