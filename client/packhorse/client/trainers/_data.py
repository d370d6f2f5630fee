"""`PackedData`: which packed dataset a trainer is to train or validate on.

Owns that description, and the loader of a validation set; leaves batches to `loading`. What a trainer knows itself
(batch size, ranks, device) the glue adds.
"""

from collections.abc import Callable, Iterator
from typing import Any

from packhorse.client.api import Client
from packhorse.client.batches.packed_batch import PackedBatch
from packhorse.client.loading.loader import PackedDataLoader, create_packed_dataloader
from packhorse.client.loading.options import check_options
from packhorse.client.transport.memory_datasets import MemoryDatasets
from packhorse.topology import BatchSchedule


class PackedData:
    """A packed dataset, as it is given to a trainer.

    Example:
        >>> data = PackedData("embedded:datasets", "corpus", "corpus.idx", num_workers=0)
        >>> data
        PackedData('embedded:datasets', 'corpus', num_workers=0)
        >>> len(data.loader(batch_size=1, device="cpu"))
        2

    Args:
        target: what `connect` takes, or a function that returns a Client; see `PackedDataset`.
        dataset: its name on the server.
        tokens: a TokenSource, a path of a token file, or anything that gives a sequence's tokens for its id.
        options: further ones of `create_packed_dataloader`, such as `loss_mask` or `balance`. They come before what the
            trainer says.

    Raises:
        TypeError: an option is neither the dataset's nor the loader's; names those that are spelled alike.
    """

    def __init__(
        self, target: str | MemoryDatasets | Callable[[], Client], dataset: str, tokens: Any, **options: Any
    ) -> None:
        check_options("PackedData", {name: value for name, value in options.items() if name != "batch_size"})
        self.target = target
        self.dataset = dataset
        self.tokens = tokens
        self.options = options

    def loader(self, **of_trainer: Any) -> PackedDataLoader:
        """Returns a loader with the trainer's arguments, where the options do not say otherwise."""
        return create_packed_dataloader(self.target, self.dataset, self.tokens, **(of_trainer | self.options))

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"PackedData({self.target!r}, {self.dataset!r}{options})"


def refuse_schedule(batch_size: object, name: str, why: str) -> None:
    """Refuses a batch size that changes as training goes on, where a trainer counts by one.

    Args:
        batch_size: as it was given.
        name: of the argument.
        why: what the trainer does, and the way out.

    Raises:
        ValueError: it is a schedule.
    """
    if isinstance(batch_size, str | BatchSchedule):
        raise ValueError(f"{name} must be a number, got {str(batch_size)!r}: {why}")


class ValidationBatches:
    """The same epoch each time: every sequence once, the same batches, as many on every rank."""

    def __init__(self, loader: PackedDataLoader) -> None:
        self._loader = loader
        self._epoch = loader.epoch
        self._length: int | None = None

    def __iter__(self) -> Iterator[PackedBatch]:
        self._loader.set_epoch(self._epoch)
        return iter(self._loader)

    def __len__(self) -> int:
        if self._length is None:
            self._loader.set_epoch(self._epoch)
            self._length = len(self._loader)
        return self._length

    def close(self) -> None:
        """Ends the workers."""
        self._loader.close()
