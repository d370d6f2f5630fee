r"""Grain over packed bins: for torchtitan, MaxText and other trainers whose loader is a Grain pipeline.

    python client/examples/grain_loader.py --target 127.0.0.1:50051 --dataset corpus --tokens corpus.idx \
        --rank 0 --world-size 2 --steps 100 --checkpoint data.json

`PackedBinsConfig` is all that torchtitan's own GrainDataLoader needs: it stands where a packing config stood. Its state
resumes under the number of ranks that saved it. `ElasticLoader` is a loader for any trainer that saves `Stateful`
objects, and resumes under any number of ranks and any batch size. Neither shuffles: the epoch's order is shuffled.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grain
import numpy as np
import torch
from grain.experimental import ElasticIterator

from packhorse.client import BatchFormat, PackedBins


@dataclass(frozen=True, kw_only=True)
class PackedBinsConfig:
    """A torchtitan `DatasetConfig`: `GrainDataLoader.Config(dataset=PackedBinsConfig(...))`."""

    target: str
    dataset: str
    tokens: str
    num_epochs: int = 1_000  # torchtitan stops by steps; each epoch has an order of its own

    def build(self, *, context: Any, dataset_iteration_policy: Any) -> grain.MapDataset:
        """Builds this rank's rows: every rank reads its share of each step's bins. It needs no `context`."""
        policy = dataset_iteration_policy
        bins = PackedBins(
            self.target,
            self.dataset,
            self.tokens,
            seed=policy.seed,
            num_epochs=self.num_epochs,
            num_bins_multiple_of=policy.dp_world_size,
            output="numpy",
            batch=BatchFormat(shift_labels=True),
        )
        return grain.MapDataset.source(bins)[policy.dp_rank :: policy.dp_world_size].map(as_text_sequence)


def as_text_sequence(row: dict[str, Any]) -> Any:
    """Returns a row as torchtitan's data pipeline names it."""
    from torchtitan.components.data import TextSequence

    return TextSequence(input_ids=row["input_ids"], labels=row["labels"], positions=row["position_ids"])


class ElasticLoader:
    """One rank's batches; the state is the same on every rank, and resumes under any number of them.

    Args:
        bins: NumPy rows, made up to a multiple of batch_size · world_size.
        batch_size: bins for each rank and step.
        rank: data-parallel rank.
        world_size: data-parallel degree.
    """

    def __init__(self, bins: PackedBins, *, batch_size: int, rank: int, world_size: int) -> None:
        self._bins = bins
        self._shard = grain.sharding.ShardOptions(shard_index=rank, shard_count=world_size)
        self._bins_per_step = batch_size * world_size
        self._begin()

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        """Yields inputs and labels as torchtitan's trainer takes them: the rows end to end, int64 [B · L]."""
        for batch in self._batches:
            input_ids, positions, labels = (
                torch.from_numpy(np.ravel(batch[name])) for name in ("input_ids", "position_ids", "labels")
            )
            yield {"input": input_ids, "positions": positions}, labels

    def state_dict(self) -> dict[str, Any]:
        """Returns the cursor after the last batch that was returned."""
        return dict(self._bins.cursor_after(self._batches.get_state()["global_next_index"]))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on there."""
        self._bins.load_state_dict(state)
        self._begin()

    def _begin(self) -> None:
        """Begins Grain's count at 0 again; the cursor in the bins says which batch that is."""
        self._batches = iter(ElasticIterator(grain.MapDataset.source(self._bins), self._bins_per_step, self._shard))


def main() -> None:
    """Reads batches, and saves where it stands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True, help="the server, host:port")
    parser.add_argument("--dataset", required=True, help="a prepared dataset's name")
    parser.add_argument("--tokens", required=True, help="the token file that it was prepared from")
    parser.add_argument("--checkpoint", type=Path, required=True, help="file to go on from, and to save to")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=4, help="bins for each rank and step")
    parser.add_argument("--steps", type=int, default=100, help="steps after which to save and leave")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    bins = PackedBins(
        arguments.target,
        arguments.dataset,
        arguments.tokens,
        seed=arguments.seed,
        num_bins_multiple_of=arguments.batch_size * arguments.world_size,
        output="numpy",
        batch=BatchFormat(shift_labels=True),
    )
    loader = ElasticLoader(bins, batch_size=arguments.batch_size, rank=arguments.rank, world_size=arguments.world_size)
    if arguments.checkpoint.exists():
        loader.load_state_dict(json.loads(arguments.checkpoint.read_text()))
    num_targets = 0
    # The range comes first: when it ends, no batch has been taken that would not be trained on.
    for _, (_, labels) in zip(range(arguments.steps), loader, strict=False):
        num_targets += int((labels >= 0).sum())
    arguments.checkpoint.write_text(json.dumps(loader.state_dict()))
    print(f"{num_targets} targets; saved {arguments.checkpoint} at position {loader.state_dict()['position']}")


if __name__ == "__main__":
    main()
