"""`PackedDataModule`: packed batches for a Lightning Trainer, resumable within an epoch.

Owns keeping the Trainer's counts of epochs and batches equal to the cursor's; leaves the batches to
`packhorse.client.loading`. Importing this module needs no Lightning, but making a PackedDataModule does.
"""

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from packhorse.client import Batch, LoaderOptions, PackedDataLoader, Run
from packhorse.trainers._data import PackedData
from packhorse.trainers._validation import ValidationBatches

try:
    from lightning.pytorch import LightningDataModule, Trainer
except ModuleNotFoundError as error:
    if error.name != "lightning":
        raise
    LightningDataModule = None  # type: ignore[assignment, misc]


class PackedDataModule(LightningDataModule or object):  # type: ignore[misc]
    """A Lightning data module that gives one epoch of a packed dataset for each epoch of the Trainer.

    The Trainer's checkpoints hold the cursor of the last batch trained on. `fit(..., ckpt_path=…)` continues after it,
    under any world size and batch size, and so does another `fit` of the same Trainer. If the Trainer's counts and the
    cursor differ, the cursor is right: an epoch that `max_steps` cut is finished first, although the Trainer counts it
    as done. The Trainer's counts are then set as if the epoch had been trained under the new topology from its
    beginning, so that its progress ends with the epoch. Rank, world size and device come from the Trainer, which
    neither shards nor moves these batches again (`use_distributed_sampler` has no effect on them).

    Example:
        >>> data = PackedDataModule(PackedData("embedded:datasets", "corpus", "corpus.idx", batch_size=2, seed=1))
        >>> Trainer(max_epochs=2).fit(model, datamodule=data)  # doctest: +SKIP

    Args:
        data: the training data, with its batch size, and with its rank if data-parallel ranks are not the Trainer's
            processes.
        validation: the validation data: all of it, in the same batches each time, the same number on every rank. Batch
            size, seed and preset default to those of training.

    Raises:
        ImportError: Lightning is not installed.
        ValueError: the batch size is missing, a batch schedule is given, or an epoch is given, which the Trainer
            counts.
    """

    def __init__(self, data: PackedData, *, validation: PackedData | None = None) -> None:
        if LightningDataModule is None:
            raise ImportError("PackedDataModule needs Lightning: install packhorse[lightning]")
        super().__init__()
        if data.batch_size is None and data.topology is None:
            raise ValueError("batch_size is missing: give PackedData the bins in a batch, for each rank")
        data.refuse_schedule("Lightning counts every epoch by the first one's steps; loop over a loader yourself")
        if isinstance(data.dataset, Run) and data.dataset.epoch:
            raise ValueError("epoch has no effect here: the Trainer counts epochs, and a checkpoint's cursor sets them")
        self._data = data
        self._validation = validation
        self._epochs: _TrainerEpochs | None = None
        self._validation_batches: ValidationBatches | None = None
        self._resumed: Mapping[str, Any] | None = None

    def train_dataloader(self) -> "_TrainerEpochs":
        """Returns this process's training batches; Lightning calls it after the processes are connected."""
        state, self._resumed = self._resumed, None
        if self._epochs is not None:
            self._epochs.close()
            if state is None and self._epochs.belongs_to(self.trainer):
                state = self._epochs.trained_state()
        self._epochs = _TrainerEpochs(self._data.open(loader=self._trainer_options()), self.trainer, state)
        return self._epochs

    def val_dataloader(self) -> ValidationBatches | list[Any]:
        """Returns this process's validation batches; an empty list without validation data."""
        if self._validation is None:
            return []
        if self._validation_batches is None:
            data = self._validation.with_defaults(self._data)
            self._validation_batches = ValidationBatches(data.open(loader=self._trainer_options()))
        return self._validation_batches

    def state_dict(self) -> dict[str, Any]:
        """Returns the cursor of the last batch trained on, for the Trainer's checkpoints."""
        state = self._resumed
        if state is None and self._epochs is not None:
            state = self._epochs.trained_state()
        return dict(state or {})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keeps a checkpoint's cursor for the loader, which is made later."""
        self._resumed = state_dict or None

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Returns packed batches as they are, because they are on the device already; Lightning moves others."""
        return batch if isinstance(batch, Batch) else super().transfer_batch_to_device(batch, device, dataloader_idx)

    def teardown(self, stage: str) -> None:
        """Ends the workers."""
        for batches in (self._epochs, self._validation_batches):
            if batches is not None:
                batches.close()

    def _trainer_options(self) -> LoaderOptions:
        """Returns the loader's options that the Trainer knows: device, rank and world size."""
        trainer = self.trainer
        return LoaderOptions(device=trainer.strategy.root_device, rank=(trainer.global_rank, trainer.world_size))


class _TrainerEpochs:
    """The training batches as Lightning's loop iterates them: epoch after epoch, each with the length of a whole one.

    The cursor decides which batch is next. The Trainer ends an epoch when its count of batches reaches the epoch's
    length, and counts an epoch that `max_steps` cut as a whole one. So its counts are set to the cursor's if they
    differ.

    Args:
        loader: a loader, at the beginning of any epoch.
        trainer: the Trainer whose counts are set.
        state: the cursor to continue after; None for the beginning of the epoch that the Trainer counts.
    """

    def __init__(self, loader: PackedDataLoader, trainer: "Trainer", state: Mapping[str, Any] | None) -> None:
        self._loader = loader
        self._trainer = trainer
        self._length: int | None = None
        num_done = self._go_to(state)
        self._epoch = loader.epoch
        self._states = {self._num_trained: loader.state_dict()}  # batches trained on → the cursor after them
        self._set_counts(num_done)

    def __iter__(self) -> Iterator[Batch]:
        """Yields the batches of the epoch that the Trainer counts when the first batch is requested."""
        self._loader.set_epoch(max(self._epoch, self._num_epochs_done))
        self._check_length()
        num_yielded = self._num_trained  # counted in all epochs, as batches trained on are
        self._states = {num_yielded: self._loader.state_dict()}
        for batch in self._loader:
            num_yielded += 1
            num_trained = self._num_trained
            self._states = {count: state for count, state in self._states.items() if count >= num_trained}
            self._states[num_yielded] = self._loader.state_dict()
            yield batch
        self._states[num_yielded] = self._loader.state_dict()  # after the last batch: at the next epoch

    def __len__(self) -> int:
        """Returns the number of batches in a whole epoch."""
        if self._length is None:
            return len(self._loader)  # raises the TypeError that says why there is no length
        return self._length

    def trained_state(self) -> dict[str, Any] | None:
        """Returns the cursor of the last batch that was trained on, even if later ones were returned.

        Returns None if the Trainer's count belongs to another training, as after a tuner has set it back.
        """
        return self._states.get(self._num_trained)

    def belongs_to(self, trainer: "Trainer") -> bool:
        """Returns whether these batches were made for this Trainer."""
        return self._trainer is trainer

    def state_dict(self) -> dict[str, Any]:
        """Returns an empty dict. Lightning expects the method of loaders that resume; the module has the cursor."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Does nothing; see `state_dict`."""

    def close(self) -> None:
        """Ends the workers."""
        self._loader.close()

    @property
    def _num_trained(self) -> int:
        """Batches that the Trainer has trained on, in all epochs."""
        count: Any = self._trainer.fit_loop.epoch_loop.batch_progress.total
        return int(count.processed)

    @property
    def _num_epochs_done(self) -> int:
        """Epochs that the Trainer counts as done."""
        count: Any = self._trainer.fit_loop.epoch_progress.current
        return int(count.processed)

    def _go_to(self, state: Mapping[str, Any] | None) -> int | None:
        """Moves the loader to the batch with which training continues.

        Returns:
            Number of batches of its epoch that are done, in batches of this topology; None if epochs have no length.
        """
        loader = self._loader
        loader.set_epoch(self._num_epochs_done if state is None else state.get("epoch", 0))
        try:
            self._length = len(loader)
        except TypeError:  # in mode "independent" epochs have no length
            if state is not None:
                loader.load_state_dict(state)
            return None
        if state is None:
            return 0
        loader.load_state_dict(state)
        num_done = self._length - len(loader)
        if num_done < self._limited(self._length):
            return num_done
        loader.set_epoch(loader.epoch + 1)
        self._length = len(loader)
        return 0

    def _limited(self, length: int) -> int:
        """Returns how many batches of an epoch the Trainer trains on (`limit_train_batches`)."""
        limit: int | float = self._trainer.limit_train_batches
        return min(length, limit) if isinstance(limit, int) else int(length * limit)

    def _set_counts(self, num_done: int | None) -> None:
        """Sets the Trainer's counts to this epoch with `num_done` batches, if they differ.

        If `num_done` is None, epochs have no length, and the Trainer's own count of batches stays.
        """
        fit_loop: Any = self._trainer.fit_loop
        epochs, batches = fit_loop.epoch_progress.current, fit_loop.epoch_loop.batch_progress
        is_ended = epochs.processed == epochs.ready
        if num_done is None:
            num_done = batches.current.processed if self._loader.state_dict()["position"] else 0
        if is_ended:
            counted = epochs.processed, 0
        elif batches.is_last_batch:  # trained on, but its epoch does not count as done yet
            counted = epochs.processed + 1, 0
        else:
            counted = epochs.processed, batches.current.processed
        self._warn_of_end(num_done)
        # An ended epoch leaves `is_last_batch` True, which must not hold for the next one.
        if counted != (self._epoch, num_done) or (is_ended and batches.is_last_batch):
            self._write_counts(num_done)

    def _write_counts(self, num_done: int) -> None:
        """Makes the Trainer continue in this epoch, after `num_done` of its batches."""
        fit_loop: Any = self._trainer.fit_loop
        epochs, batches = fit_loop.epoch_progress.current, fit_loop.epoch_loop.batch_progress
        epochs.processed = epochs.completed = self._epoch
        epochs.ready = epochs.started = self._epoch + 1 if num_done else self._epoch
        vars(fit_loop.epoch_progress.total).update(vars(epochs))
        difference = num_done - batches.current.processed
        for name in ("ready", "started", "processed", "completed"):
            setattr(batches.current, name, getattr(batches.current, name) + difference)
        batches.is_last_batch = False
        fit_loop.restarting = True  # Lightning resets it if no epoch has begun

    def _warn_of_end(self, num_done: int) -> None:
        """Warns if the Trainer would end before the epoch that is to be finished."""
        max_epochs = self._trainer.max_epochs  # None or -1: no limit
        if num_done and max_epochs is not None and -1 < max_epochs <= self._epoch:
            warnings.warn(
                f"the cursor is within epoch {self._epoch}, after {num_done:,} of its batches, but Trainer(max_epochs="
                f"{max_epochs}) ends before it: nothing is trained. Epoch {self._epoch} is finished with "
                f"max_epochs={self._epoch + 1}",
                stacklevel=2,
            )

    def _check_length(self) -> None:
        """Refuses an epoch with more batches than Lightning expects, because it would leave out the rest."""
        if self._length is None or self._loader.epoch == self._epoch:
            return
        if (length := len(self._loader)) > self._length:
            raise ValueError(
                f"epoch {self._loader.epoch} has {length:,} batches, and Lightning would end it after "
                f"{self._length:,}, as many as epoch {self._epoch} has; let it count each epoch: "
                "Trainer(reload_dataloaders_every_n_epochs=1)"
            )
