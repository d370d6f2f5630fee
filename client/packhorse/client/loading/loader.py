"""`create_packed_dataloader` and `PackedDataLoader`: a dataset's batches, on the device before a step needs them.

Owns the DataLoader with its workers, and when an epoch counts as done. Leaves how workers start and end to
`loading.workers`, batches to `dataset`, fetching ahead to `prefetch`, copies to the device to `_device_copies`, and
sending batches to other ranks to `peers`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Self

import torch
from torch.utils.data import DataLoader, IterableDataset

from packhorse.client.argument_hints import with_hints
from packhorse.client.batches.packed_batch import Batch
from packhorse.client.connecting import Server, Target
from packhorse.client.loading._device_copies import chosen_device
from packhorse.client.loading.dataset import PackedDataset
from packhorse.client.loading.peers import Peers
from packhorse.client.loading.prefetch import DevicePrefetcher
from packhorse.client.loading.workers.preemption import starting_workers
from packhorse.client.loading.workers.start import context_of_workers
from packhorse.client.options import BalanceName, LoaderOptions, Run, with_arguments
from packhorse.client.presets import BatchFormat, Preset, PresetName
from packhorse.client.streams.cursor import as_cursor
from packhorse.topology import Balance, Topology


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
    `set_epoch` and `load_state_dict`. They are forked if that is the platform's default, unless this process has used
    gRPC through this package (a Client, a dataset iterated without workers), because forked children would sometimes
    stall. Then they come from a fork server, and the script needs its `if __name__ == "__main__":`. `len` asks in a
    child process, so it does not count. Workers ignore SIGTERM, SIGINT and the like, so that the trainer can save; they
    end when the trainer ends.

    With `peers`, the first of these ranks reads, and the others receive its batches and start no workers. All of them
    must call `next` together, as they run their model together.

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
        ValueError: the device is not like "cuda:0" or "cpu", or `peers` are not a process group with this process, or a
            mesh's dimension.
    """

    def __init__(self, dataset: PackedDataset, options: LoaderOptions | None = None) -> None:
        self.dataset = dataset
        self.options = options or LoaderOptions()
        _check_device(self.options.device)
        self._prefetcher: DevicePrefetcher[Batch] | None = None
        self._peers = Peers.of(self.options.peers)

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration reads."""
        return self.dataset.epoch

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Yields the remaining epochs up to `num_epochs`; see `PackedDataset.epochs`."""
        return self.dataset.epochs(num_epochs)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next iteration; see `PackedDataset.set_epoch`."""
        self.dataset.progress.restart()  # workers may have read to the epoch's end; the loop's own progress counts
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
        """Number of batches that the next iteration yields to this rank."""
        return len(self.dataset)

    def __iter__(self) -> Iterator[Batch]:
        """Yields this rank's batches of the epoch, with their tensors on the device.

        It may raise any exception of the client. If you leave an iteration early, the next one begins at the same
        point: the epoch's beginning, or the state last given to `load_state_dict`.
        """
        progress, digest = self.dataset.progress, ""
        progress.restart()
        choice = progress.choice  # a later one, made while this iteration goes on, is not changed by its end
        batches = self._own_batches() if self._peers is None else self._shared_batches(self._peers)
        for batch in batches:
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
        if self._prefetcher is not None:
            self._prefetcher.close()
            self._prefetcher = None

    def _own_batches(self) -> Iterator[Batch]:
        """Returns the batches that this rank reads itself, on the device."""
        if self._prefetcher is None:
            self._prefetcher = DevicePrefetcher(self._data_loader(), self.options.device, depth=self.options.depth)
        return iter(self._prefetcher)

    def _shared_batches(self, peers: Peers) -> Iterator[Batch]:
        """Returns the batches that this rank shares with its peers, after checking that all would read the same."""
        dataset, resume = self.dataset, self.dataset.progress.next
        peers.agree(
            {
                "the dataset": dataset.run.dataset,
                "the seed": dataset.run.seed,
                "the data-parallel rank": dataset.rank,
                "the topology": dataset.topology,
                "the epoch": resume.epoch,
                "the position": (resume.position, resume.first_step),
            }
        )
        return peers.share(self._own_batches() if peers.is_first else None, chosen_device(self.options.device))

    def _data_loader(self) -> "DataLoader[Batch]":
        """Returns the DataLoader that makes this rank's batches, in workers or in this process.

        It does not pin memory, which would take one more thread and queue: the prefetcher's thread does.
        """
        options = self.options
        if options.num_workers == 0:
            return DataLoader(_InThisProcess(self.dataset), batch_size=None)
        return _Workers(
            self.dataset,
            batch_size=None,
            num_workers=options.num_workers,
            prefetch_factor=options.prefetch_factor,
            persistent_workers=True,
            multiprocessing_context=context_of_workers(options.multiprocessing_context),
        )


class _Workers(DataLoader[Batch]):
    """A DataLoader whose workers survive the signals of a preemption from the moment they start."""

    def __iter__(self) -> Any:
        with starting_workers():
            return super().__iter__()


class _InThisProcess(IterableDataset[Batch]):
    """A dataset whose batches are made in this process, ahead of the loop.

    Reaching its end does not end the epoch: the loader decides that, when the loop has got the last batch.
    """

    def __init__(self, dataset: PackedDataset) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[Batch]:
        return self._dataset.iterate()


@with_hints
def create_packed_dataloader(
    target: Target | Server,
    dataset: str | Run | None = None,
    tokens: Any = None,
    *,
    batch_size: int | None = None,
    seed: int | None = None,
    preset: Preset | PresetName | None = None,
    balance: Balance | BalanceName | None = None,
    num_workers: int | None = None,
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

        A prepared folder by itself is served in this process, and knows its tokens:

        >>> loader = create_packed_dataloader("datasets/corpus", batch_size=2, seed=1, num_workers=0, device="cpu")
        >>> [batch["input_ids"].shape for batch in loader]
        [torch.Size([2, 8])]
        >>> loader.close()

    Args:
        target: a target of `connect`, a function that returns a Client, or a Server. Without `dataset`, the path of a
            prepared folder or of a mixture's file.
        dataset: its name on the server, or a Run, which can also skip positions; None for the folder's.
        tokens: a TokenSource, a path of a token file, or anything that maps an id to tokens; None for those that the
            folder was prepared from.
        batch_size: bins in a batch, for each rank; None if `topology` gives it.
        seed: of the run, in [0, 2^64); None for the seed of the Run, or 0.
        preset: name of a training stack, or a Preset, whose keys the batches get; None for PackedBatch's own.
        balance: where ranks wait for each other: `none`, `micro-step` or `optimizer-step`; see `PackedDataset`. None
            for the balance of `topology`, which is `none` by default.
        num_workers: worker processes; 0 to make batches in this process. None for those of `loader`, 2 by default.
        device: the tensors' device; None for the current CUDA device if there is one, else the CPU.
        topology: how ranks share the epoch: remainder, mode, accumulation, batch schedule.
        batch: how a batch looks: separators, labels, loss mask and the like.
        loader: which rank this process is, and what workers make ahead.

    Raises:
        ValueError: an argument is out of range, or is given twice.
        TypeError: there is no such argument; if a DataLoader has it, the error says what to give here.
    """
    options = with_arguments(loader or LoaderOptions(), num_workers=num_workers, device=device)
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
    """Raises a ValueError for what names no device. Whether it exists shows when the first batch is copied to it."""
    try:
        torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device must be like 'cuda:0' or 'cpu', got {device!r}: {str(error)[:200]}") from None
