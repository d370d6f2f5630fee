"""`PackedDataModule`: packed batches for a Lightning Trainer.

Owns what Lightning's loop asks of a loader beyond iterating it; leaves the batches to `loader`. Importing this needs no
Lightning; making a module does.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Unpack

import torch

from packhorse.client.api import Client
from packhorse.client.batches.batch import PackedBatch
from packhorse.client.loading._options import LoadingOptions, check_options
from packhorse.client.loading._parcel import Parcel
from packhorse.client.loading.loader import PackedDataLoader
from packhorse.client.service.memory import MemoryDatasets
from packhorse.client.stacks._data import PackedData, ValidationBatches, refuse_schedule

try:
    from lightning.pytorch import LightningDataModule, Trainer
except ModuleNotFoundError as error:
    if error.name != "lightning":
        raise
    LightningDataModule = None  # type: ignore[assignment, misc]


class PackedDataModule(LightningDataModule or object):  # type: ignore[misc]
    """Trains on one epoch of a packed dataset for each epoch of the Trainer, and resumes within one.

    The Trainer's own checkpoints hold the cursor of the last batch trained on; `fit(..., ckpt_path=…)` goes on behind
    it, under any world size and batch size. The Trainer then counts as if the epoch had been trained with the new ones
    from its beginning, so that its progress ends with the epoch. Rank, world size and device come from the Trainer,
    which neither shards nor moves these batches again (`use_distributed_sampler` has no say over them).

    Example:
        >>> data = PackedDataModule("embedded:datasets", "corpus", "corpus.idx", batch_size=2, seed=1)
        >>> Trainer(max_epochs=2).fit(model, datamodule=data)  # doctest: +SKIP

    Args:
        target: what `connect` takes, or a function that returns a Client; see `PackedDataset`.
        dataset: its name on the server.
        tokens: a TokenSource, a path of a token file, or anything that gives a sequence's tokens for its id.
        batch_size: bins in a batch, for each rank.
        validation: what is validated on: all of it, in the same batches each time, as many on every rank. Its options
            are those of training unless it says otherwise.
        options: further ones of `create_packed_dataloader`; `rank` and `world_size` where data-parallel ranks are not
            the Trainer's processes.

    Raises:
        ImportError: Lightning is not installed.
        TypeError: an option is neither the dataset's nor the loader's; names those that are spelled alike.
    """

    def __init__(
        self,
        target: str | MemoryDatasets | Callable[[], Client],
        dataset: str,
        tokens: Any,
        *,
        batch_size: int,
        validation: PackedData | None = None,
        **options: Unpack[LoadingOptions],
    ) -> None:
        if LightningDataModule is None:
            raise ImportError("PackedDataModule needs Lightning: install packhorse[lightning]")
        super().__init__()
        check_options("PackedDataModule", options)
        refuse_schedule(
            batch_size,
            "batch_size",
            "Lightning counts every epoch by the first one's steps; loop over a loader yourself",
        )
        self._data = PackedData(target, dataset, tokens, batch_size=batch_size, **options)
        self._validation = validation
        self._epochs: _TrainerEpochs | None = None
        self._validated: ValidationBatches | None = None
        self._resumed: Mapping[str, Any] | None = None

    def train_dataloader(self) -> "_TrainerEpochs":
        """Returns this process's batches; Lightning calls it once the processes know one another."""
        if self._epochs is not None:
            self._epochs.close()
        self._epochs = _TrainerEpochs(self._data.loader(**self._of_trainer()), self.trainer)
        if self._resumed is not None:
            self._epochs.resume(self._resumed)
            self._resumed = None
        return self._epochs

    def val_dataloader(self) -> ValidationBatches | list[Any]:
        """Returns this process's batches of the validation set; nothing where there is none."""
        if self._validation is None:
            return []
        if self._validated is None:
            self._validated = ValidationBatches(self._validation.loader(**(self._of_trainer() | self._data.options)))
        return self._validated

    def state_dict(self) -> dict[str, Any]:
        """Returns the cursor of the last batch trained on, for the Trainer's checkpoints."""
        return {} if self._epochs is None else self._epochs.trained_state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keeps a checkpoint's cursor for the loader, which is made later."""
        self._resumed = state_dict

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Leaves packed batches alone, which are on the device; others go Lightning's way."""
        return batch if isinstance(batch, Parcel) else super().transfer_batch_to_device(batch, device, dataloader_idx)

    def teardown(self, stage: str) -> None:
        """Ends the workers."""
        for batches in (self._epochs, self._validated):
            if batches is not None:
                batches.close()

    def _of_trainer(self) -> dict[str, Any]:
        trainer = self.trainer
        return {
            "device": trainer.strategy.root_device,
            "rank": trainer.global_rank,
            "world_size": trainer.world_size,
        }


class _TrainerEpochs:
    """A loader as Lightning's loop goes through it: the Trainer's epochs, each with the length of a whole one."""

    def __init__(self, loader: PackedDataLoader, trainer: "Trainer") -> None:
        self._loader = loader
        self._trainer = trainer
        self._length: int | None = None
        self._before = loader.state_dict()

    def __iter__(self) -> Iterator[PackedBatch]:
        """Yields the batches of the Trainer's epoch; which that is, is looked up with the first `next`."""
        self._loader.set_epoch(self._trainer.current_epoch)
        batches = iter(self._loader)
        while True:
            before = self._loader.state_dict()
            batch = next(batches, None)
            if batch is None:
                return
            self._before = before
            yield batch

    def __len__(self) -> int:
        """Batches of a whole epoch; first asked before a state is loaded."""
        if self._length is None:
            self._length = len(self._loader)
        return self._length

    def resume(self, state: Mapping[str, Any]) -> None:
        """Goes on behind a batch, and has the Trainer count the batches before it as this topology would.

        The Trainer ends an epoch when its count comes to the epoch's length. Its checkpoint counts the batches of the
        topology that saved it, which may have been larger or smaller.
        """
        try:
            whole = len(self)
        except TypeError:  # mode "independent": the epoch ends with its last batch, whatever was counted
            whole = None
        self._loader.load_state_dict(state)
        if whole is not None:
            count: Any = self._trainer.fit_loop.epoch_loop.batch_progress.current
            difference = whole - len(self._loader) - count.processed
            count.ready += difference
            count.started += difference
            count.processed += difference
            count.completed += difference

    def trained_state(self) -> dict[str, Any]:
        """Returns the cursor of the last batch trained on: not of one that an exception or signal came in between."""
        count: Any = self._trainer.fit_loop.epoch_loop.batch_progress.current
        return self._loader.state_dict() if count.processed == count.ready else self._before

    def state_dict(self) -> dict[str, Any]:
        """Returns nothing: Lightning wants loaders that resume to have this method, but the module holds the cursor."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes nothing; see `state_dict`."""

    def close(self) -> None:
        """Ends the workers."""
        self._loader.close()
