"""`ValidationBatches`: the same validation batches, each time a trainer asks for them."""

from collections.abc import Iterator

from packhorse.client import (
    Batch,
    PackedDataLoader,
)


class ValidationBatches:
    """The batches of one epoch, the same in each iteration, as many on every rank; every sequence comes once."""

    def __init__(self, loader: PackedDataLoader) -> None:
        self._loader = loader
        self._epoch = loader.epoch
        self._length: int | None = None

    def __iter__(self) -> Iterator[Batch]:
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
