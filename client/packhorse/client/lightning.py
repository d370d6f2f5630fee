"""`PackedDataModule`: packed batches for a Lightning Trainer.

Owns what Lightning's loop asks of a loader beyond iterating it; leaves the batches to `loader`. Importing this needs no
Lightning; making a module does.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from packhorse.client.api import Client
from packhorse.client.batch import PackedBatch
from packhorse.client.loader import PackedDataLoader, create_packed_dataloader
from packhorse.client.parcel import Parcel

try:
    from lightning.pytorch import LightningDataModule, Trainer
except ModuleNotFoundError as error:
    if error.name != "lightning":
        raise
    LightningDataModule = None  # type: ignore[assignment, misc]


class PackedDataModule(LightningDataModule or object):  # type: ignore[misc]
    """Trains on one epoch of a packed dataset for each epoch of the Trainer, and resumes within one.

    The Trainer's own checkpoints hold the cursor of the last batch trained on; `fit(..., ckpt_path=…)` goes on behind
    it. Rank, world size and device come from the Trainer, which neither shards nor moves these batches again
    (`use_distributed_sampler` has no say over them).

    Args:
        target: what `connect` takes, or a function that returns a Client; see `PackedDataset`.
        dataset: its name on the server.
        tokens: a TokenSource, a path of a token file, or anything that gives a sequence's tokens for its id.
        batch_size: bins in a batch, for each rank.
        options: further ones of `create_packed_dataloader`; `rank` and `world_size` where data-parallel ranks are not
            the Trainer's processes.

    Raises:
        ImportError: Lightning is not installed.
    """

    def __init__(
        self, target: str | Callable[[], Client], dataset: str, tokens: Any, *, batch_size: int, **options: Any
    ) -> None:
        if LightningDataModule is None:
            raise ImportError("PackedDataModule needs Lightning: install packhorse[lightning]")
        super().__init__()
        self._arguments = (target, dataset, tokens)
        self._options = {"batch_size": batch_size} | options
        self._loader: PackedDataLoader | None = None

    def train_dataloader(self) -> "_TrainerEpochs":
        """Returns this process's batches; Lightning calls it once the processes know one another."""
        trainer = self.trainer
        of_trainer = {
            "device": trainer.strategy.root_device,
            "rank": trainer.global_rank,
            "world_size": trainer.world_size,
        }
        self._loader = create_packed_dataloader(*self._arguments, **(of_trainer | self._options))
        return _TrainerEpochs(self._loader, trainer)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Leaves packed batches alone, which are on the device; others go Lightning's way."""
        return batch if isinstance(batch, Parcel) else super().transfer_batch_to_device(batch, device, dataloader_idx)

    def teardown(self, stage: str) -> None:
        """Ends the workers."""
        if self._loader is not None:
            self._loader.close()


class _TrainerEpochs:
    """A loader as Lightning's loop goes through it: the Trainer's epochs, each with the length of a whole one.

    The loop saves and loads the state of loaders that have one. After a resume it counts from the batch that it had
    reached, so what is left of that epoch must not shorten the length.
    """

    def __init__(self, loader: PackedDataLoader, trainer: "Trainer") -> None:
        self._loader = loader
        self._trainer = trainer
        self._length: int | None = None

    def __iter__(self) -> Iterator[PackedBatch]:
        """Yields the batches of the Trainer's epoch; which that is, is looked up with the first `next`."""
        self._loader.set_epoch(self._trainer.current_epoch)
        yield from self._loader

    def __len__(self) -> int:
        """Batches of a whole epoch; first asked before a state is loaded."""
        if self._length is None:
            self._length = len(self._loader)
        return self._length

    def state_dict(self) -> dict[str, Any]:
        """Returns the cursor of the last batch; see `PackedDataLoader.state_dict`."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on behind a batch; see `PackedDataLoader.load_state_dict`."""
        self._loader.load_state_dict(state)
