"""The batches that Hugging Face's Trainer iterates over, for training and for validation, without their cursors.

Owns which batches of a resumed epoch remain, and the number of epochs that are done. Leaves the Trainer's counts to
`trainers/transformers`, the cursor in its checkpoints to `_transformers_cursor`, and making the batches to
`packhorse.client.loading`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from packhorse.client import PackedDataLoader
from packhorse.trainers._validation import ValidationBatches


class TrainingBatches:
    """The training batches as the Trainer iterates them: without cursors, and only those of an epoch that remain."""

    epoch: int
    """The epoch that is being trained."""
    num_left: int
    """Batches of this epoch, from its beginning or from the position at which it was resumed."""

    def __init__(self, loader: PackedDataLoader) -> None:
        self._loader = loader
        self._length = len(loader)  # before `resume`, after which the loader counts only what remains
        self.set_epoch(loader.epoch)

    def __len__(self) -> int:
        """Returns the number of batches in a whole epoch, also after a resume: the Trainer plans all epochs by it."""
        return self._length

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(_without_cursor, self._loader)

    def set_epoch(self, epoch: int) -> None:
        """Chooses an epoch, from its beginning; the resumed one keeps its position, and is refused when it is over."""
        self._loader.set_epoch(epoch)
        self.epoch, self.num_left = epoch, len(self._loader)

    def resume(self, cursor: Mapping[str, Any]) -> None:
        """Continues after a cursor; if that is the last batch of its epoch, with the next epoch."""
        self._loader.load_state_dict(cursor)
        self.set_epoch(self._loader.epoch)
        if self.num_left == 0:
            self.set_epoch(self.epoch + 1)

    def epochs_done(self, counted_epochs: float) -> float:
        """Returns the epochs done, from the Trainer's number, which counts the remaining batches as a whole epoch.

        After a resume in the middle of epoch 2, the Trainer counts from 2.0 to 3.0, and this returns 2.5 to 3.0.
        """
        share_left = self.num_left / max(self._length, self.num_left)  # of the epoch, when this process began it
        return self.epoch + 1 - share_left * (self.epoch + 1 - counted_epochs)

    def state_dict(self) -> dict[str, Any]:
        """Returns the cursor of the last returned batch."""
        return self._loader.state_dict()

    def close(self) -> None:
        """Ends the workers."""
        self._loader.close()


class BatchesWithoutCursor:
    """The batches of a validation set without their cursors, because the Trainer passes every key to the model."""

    def __init__(self, batches: ValidationBatches) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(_without_cursor, self._batches)

    def __len__(self) -> int:
        return len(self._batches)


def _without_cursor(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in batch.items() if name != "cursor"}
