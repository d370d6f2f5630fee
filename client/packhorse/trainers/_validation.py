"""`ValidationBatches`: a validation set for a trainer, which gets the same batches in every evaluation.

Making batches is in `packhorse.client.loading`.
"""

from collections.abc import Iterator

from packhorse.client import Batch, PackedDataLoader


class ValidationBatches:
    """The batches of one epoch, the same in every iteration.

    Every rank has the same number of batches, and over all ranks every sequence comes once, unless the loader's
    remainder policy drops or repeats bins.
    """

    def __init__(self, loader: PackedDataLoader) -> None:
        self._loader = loader
        self._epoch = loader.epoch
        self._length: int | None = None

    def __iter__(self) -> Iterator[Batch]:
        self._loader.set_epoch(self._epoch)  # an epoch that has ended begins again only if it is chosen again
        return iter(self._loader)

    def __len__(self) -> int:
        if self._length is None:
            self._loader.set_epoch(self._epoch)
            self._length = len(self._loader)
        return self._length

    def close(self) -> None:
        """Ends the workers."""
        self._loader.close()
