"""`create_packed_dataloader`: a dataset's batches, on the device before a step needs them.

Owns how many workers there are and how they start; leaves batches to `dataset` and copies to the device to `prefetch`.
"""

import multiprocessing
from collections.abc import Iterator, Mapping
from multiprocessing.context import BaseContext
from typing import Any, Self

import torch
from torch.utils.data import DataLoader, IterableDataset

from packhorse.client.batches.packed_batch import PackedBatch
from packhorse.client.connecting import Server, Target
from packhorse.client.loading.dataset import PackedDataset
from packhorse.client.loading.prefetch import DevicePrefetcher
from packhorse.client.options import LoaderOptions, Run, with_words
from packhorse.client.presets import BatchFormat, Preset
from packhorse.client.streams.cursor import as_cursor
from packhorse.client.transport.grpc_channels import has_used_grpc
from packhorse.topology import Balance, Topology

_PRELOADED = ["__main__", "packhorse.client.loading.dataset"]


class PackedDataLoader:
    """Batches of a PackedDataset. Worker processes make them, and a thread copies them to the device ahead of time.

    ```
    for epoch in loader.epochs(3):
        for batch in loader:
            ...
    ```

    After an epoch's end, the next iteration reads the next epoch. `load_state_dict` continues after a cursor, and the
    loop above then trains on the rest of that epoch and on the epochs after it.

    Workers live from the first iteration until `close`, the end of a `with`, or the end of the loader, and follow
    `set_epoch` and `load_state_dict`. They are forked if that is the platform's default. But once this process has used
    gRPC through this package (a Client, a dataset iterated without workers), forked children sometimes stall. Workers
    then come from a fork server, and the script needs its `if __name__ == "__main__":`. `len` does not use gRPC in this
    sense.

    Example:
        >>> dataset = PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=1, seed=1)
        >>> loader = PackedDataLoader(dataset, LoaderOptions(num_workers=0, device="cpu"))
        >>> [batch["ids"].tolist() for batch in loader]
        [[3, 2], [0, 1]]
        >>> loader.close()

    Args:
        dataset: makes the batches; it knows its rank.
        options: workers, device, and how many batches are made ahead.

    Raises:
        ValueError: the device does not exist.
    """

    def __init__(self, dataset: PackedDataset, options: LoaderOptions | None = None) -> None:
        self.dataset = dataset
        self.options = options or LoaderOptions()
        _check_device(self.options.device)
        self._batches: DevicePrefetcher[PackedBatch] | None = None

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration reads."""
        return self.dataset.epoch

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Yields the remaining epochs up to `num_epochs`; see `PackedDataset.epochs`."""
        return self.dataset.epochs(num_epochs)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next iteration; see `PackedDataset.set_epoch`."""
        self.dataset.progress.begin()  # returned batches count, not those that workers have read
        self.dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Returns the cursor of the last returned batch; batches fetched ahead do not count.

        At an epoch's end, and before the first batch after `set_epoch` or `load_state_dict`, it returns where the next
        iteration begins.
        """
        return as_cursor(self.dataset.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues after a batch's `cursor` or a `state_dict()`; see `PackedDataset.load_state_dict`."""
        self.dataset.load_state_dict(state)

    def __repr__(self) -> str:
        device = "" if self.options.device is None else f", device {self.options.device}"
        return f"<PackedDataLoader with {self.options.num_workers} workers{device}: {self.dataset!r}>"

    def __len__(self) -> int:
        """Batches that the next iteration yields to this rank."""
        return len(self.dataset)

    def __iter__(self) -> Iterator[PackedBatch]:
        """Yields this rank's batches of the epoch, with their tensors on the device.

        The client's exceptions pass through. If you leave an iteration early, the next one begins at the same point:
        the epoch's beginning, or the state last given to `load_state_dict`.
        """
        progress, digest = self.dataset.progress, ""
        progress.begin()
        choice = progress.choice
        if self._batches is None:
            self._batches = DevicePrefetcher(self._data_loader(), self.options.device, depth=self.options.depth)
        for batch in self._batches:
            progress.record(choice, batch["cursor"])
            digest = batch["cursor"]["digest"]
            yield batch
        progress.finish(choice, digest)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the workers and an unfinished iteration; a later iteration starts new workers."""
        if self._batches is not None:
            self._batches.close()
            self._batches = None

    def _data_loader(self) -> "DataLoader[PackedBatch]":
        # Without pin_memory, which would be one more thread and queue: the prefetcher's thread pins what it copies.
        options = self.options
        if options.num_workers == 0:
            return DataLoader(_OneEpoch(self.dataset), batch_size=None)
        return DataLoader(
            self.dataset,
            batch_size=None,
            num_workers=options.num_workers,
            prefetch_factor=options.prefetch_factor,
            persistent_workers=True,
            multiprocessing_context=options.multiprocessing_context or _safe_context(),
        )


class _OneEpoch(IterableDataset[PackedBatch]):
    """A dataset's batches made in this process, ahead of the loop: only the loader knows when the epoch is done."""

    def __init__(self, dataset: PackedDataset) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[PackedBatch]:
        return self._dataset.iterate()


def create_packed_dataloader(
    target: Target | Server,
    dataset: str | Run,
    tokens: Any,
    *,
    batch_size: int | None = None,
    seed: int = 0,
    preset: Preset | str | None = None,
    balance: Balance | str = Balance.NONE,
    num_workers: int = 2,
    device: torch.device | str | None = None,
    topology: Topology | None = None,
    batch: BatchFormat | None = None,
    loader: LoaderOptions | None = None,
) -> PackedDataLoader:
    """Returns a loader of one rank's batches, with the usual defaults.

    Example:
        >>> loader = create_packed_dataloader(
        ...     "embedded:datasets", "corpus", "corpus.idx", batch_size=2, seed=1, num_workers=0, device="cpu"
        ... )
        >>> [batch["input_ids"].shape for batch in loader]
        [torch.Size([2, 8])]
        >>> loader.close()

    Args:
        target: a target of `connect`, a function that returns a Client, or a Server.
        dataset: its name on the server, or a Run, which can also skip positions.
        tokens: a TokenSource, a path of a token file, or anything that maps an id to tokens.
        batch_size: bins in a batch, for each rank; None where `topology` says it.
        seed: of the run, in [0, 2^64).
        preset: name of a training stack, or a Preset, whose keys the batches get; None for PackedBatch's own.
        balance: where ranks wait for each other: `none`, `micro-step` or `optimizer-step`; see `PackedDataset`.
        num_workers: worker processes; 0 to make batches in this process.
        device: where tensors go; None for the current CUDA device where there is one, else the CPU.
        topology: how ranks share the epoch: remainder, mode, accumulation, batch schedule.
        batch: how a batch looks: separators, labels, loss mask and the like.
        loader: which rank this process is, and what workers make ahead.

    Raises:
        ValueError: an argument is out of range, or is given twice.
    """
    options = with_words(loader or LoaderOptions(), num_workers=num_workers, device=device)
    packed = PackedDataset(
        target,
        dataset,
        tokens,
        batch_size=batch_size,
        seed=seed,
        preset=preset,
        balance=balance,
        rank=options.rank,
        topology=topology,
        batch=batch,
    )
    return PackedDataLoader(packed, options)


def _check_device(device: torch.device | str | None) -> None:
    try:
        torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device must be like 'cuda:0' or 'cpu', got {device!r}: {str(error)[:200]}") from None


def _safe_context() -> BaseContext | None:
    """How to start workers that use gRPC from this process, as it is now; None for the platform's default."""
    if multiprocessing.get_start_method() != "fork" or not has_used_grpc():
        return None
    context = multiprocessing.get_context("forkserver")
    # The server imports torch once, not each worker again; "spawn" would take seconds for every worker.
    context.set_forkserver_preload(_PRELOADED)
    return context
