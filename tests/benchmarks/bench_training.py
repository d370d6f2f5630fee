"""The trainer's side of it all: how long a step waits for its batch, and how many tokens a second come at most."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import count

from harness import Row, Sample, interleaved
from loops import token_file, tokens_per_second, wait_share
from tests.flat_words import packed_dataloader, packed_dataset
from torch.utils.data import DataLoader
from workload import Workspace, in_words, serving

NOTE = (
    "training: `packhorse serve` in a process of its own, two dataloader workers, a memory-mapped uint16 token file, "
    "batches of 8 × 2,048 with all their tensors. A step is 50 ms of sleep, as a trainer waits for a GPU; the wait is "
    "the time in `next`, without the epoch's first batch. Beside `create_packed_dataloader`, which fetches ahead in a "
    "thread, a plain DataLoader over the same PackedDataset. Tokens per second are without a step's 50 ms."
)
BATCH_SIZE, WORKERS = 8, 2
_SEQUENCES = 200_000


def run(workspace: Workspace) -> list[Row]:
    """Measures, and returns rows."""
    num_sequences = min(_SEQUENCES, workspace.sizes.small)
    name, tokens = f"bench-{num_sequences}", token_file(workspace, num_sequences)
    options = {"batch_size": BATCH_SIZE, "seed": 3, "rank": 0, "world_size": 1}
    steps = 40 * workspace.sizes.repeats
    with serving(workspace.root_of(num_sequences)) as (address, _):
        ready = packed_dataloader(address, name, tokens, num_workers=WORKERS, **options)
        plain = DataLoader(
            packed_dataset(address, name, tokens, **options),
            batch_size=None,
            num_workers=WORKERS,
            prefetch_factor=4,
            persistent_workers=True,
        )
        epochs = count()

        def wait_of(loader: Iterable[dict[str, object]]) -> float:
            return wait_share(_epoch(loader, next(epochs)), steps)

        def rate_of(loader: Iterable[dict[str, object]]) -> float:
            return tokens_per_second(_epoch(loader, next(epochs)), 10 * steps, lambda batch: batch["layout"].num_tokens)

        with closing(ready):
            waits = interleaved(3, lambda: wait_of(ready), lambda: wait_of(plain))
            rates = interleaved(3, lambda: rate_of(ready), lambda: rate_of(plain))
    size = f"8 × 2,048, {WORKERS} workers, {in_words(num_sequences)} sequences"
    our_wait, plain_wait = (Sample(values, "%") for values in waits)
    our_rate, plain_rate = (Sample(values, "M tokens/s") for values in rates)
    return [
        Row(
            what="share of a 50 ms step that waits for data",
            size=size,
            ours=str(our_wait),
            peer=f"{plain_wait}, plain DataLoader",
            ratio=plain_wait.median / our_wait.median,
            target="< 1 %",
            reached=our_wait.median < 1,
        ),
        Row(
            what="batches end to end, without a model",
            size=size,
            ours=str(our_rate),
            peer=f"{plain_rate}, plain DataLoader",
            ratio=our_rate.median / plain_rate.median,
        ),
    ]


def _epoch(loader: Iterable[dict[str, object]], epoch: int) -> Iterator[dict[str, object]]:
    dataset = loader.dataset  # type: ignore[attr-defined]
    dataset.set_epoch(epoch)
    return iter(loader)
