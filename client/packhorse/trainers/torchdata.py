"""torchdata: its StatefulDataLoader, resumable under any topology, and a source of packed batches for its node graphs.

Owns both classes. Leaves reading a state to `packhorse.client.streams`, and batches and workers to `PackedDataLoader`.
"""

from collections.abc import Iterator
from typing import Any

from packhorse.client import Batch, PackedDataLoader

try:
    from torchdata.nodes import BaseNode
    from torchdata.stateful_dataloader import StatefulDataLoader
except ModuleNotFoundError:
    raise ImportError("packhorse.trainers.torchdata needs torchdata: install torchdata") from None


class PackedStatefulDataLoader(StatefulDataLoader):
    """A StatefulDataLoader over a PackedDataset, instead of torchdata's own.

    `state_dict()` is torchdata's. `load_state_dict` takes such a state, or a batch's cursor, also under another world
    size, batch size or number of workers; torchdata's own loader needs the number of workers that saved the state.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> dataset = PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=1, seed=1)
        >>> loader = PackedStatefulDataLoader(dataset, batch_size=None)
        >>> next(iter(loader))["ids"].tolist()
        [3, 2]
        >>> again = PackedStatefulDataLoader(dataset, batch_size=None, num_workers=2)
        >>> again.load_state_dict(loader.state_dict())
        >>> [batch["ids"].tolist() for batch in again]
        [[0, 1]]
    """

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues after the last batch that the saved loader returned.

        Raises:
            ValueError: the state is not one of these, or has another seed.
        """
        super().load_state_dict({})  # ends an iteration that has begun
        if state_dict:
            self.dataset.load_state_dict(state_dict)


class PackedNode(BaseNode):
    """A source for `torchdata.nodes` that gives a loader's batches; its state is a cursor.

    After the end of an epoch, the graph's next iteration is the next epoch. If an iteration is left early, the next one
    begins the same epoch again, as in all graphs. The state of the graph resumes under any world size, batch size and
    number of workers, if the nodes after this one pass on batches one by one. Batches that they have prefetched are not
    lost.

    Example:
        >>> from packhorse.client import create_packed_dataloader
        >>> from torchdata.nodes import Loader, Prefetcher
        >>> loader = create_packed_dataloader(
        ...     "embedded:datasets", "corpus", "corpus.idx", batch_size=1, seed=1, num_workers=0, device="cpu"
        ... )
        >>> graph = Loader(Prefetcher(PackedNode(loader), prefetch_factor=2))
        >>> [batch["ids"].tolist() for batch in graph]
        [[3, 2], [0, 1]]

    Args:
        loader: the loader that makes the batches, from `create_packed_dataloader`; only this node may use it.
    """

    def __init__(self, loader: PackedDataLoader) -> None:
        super().__init__()
        self._loader = loader
        self._batches: Iterator[Batch] = iter(())

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Begins the epoch, or continues after a state; torchdata calls it."""
        super().reset(initial_state)
        if initial_state is not None:
            self._loader.load_state_dict(initial_state)
        else:
            self._loader.set_epoch(self._loader.epoch)  # begins it again, also if workers have read to its end
        self._batches = iter(self._loader)

    def next(self) -> Batch:
        """Returns the next batch."""
        return next(self._batches)

    def get_state(self) -> dict[str, Any]:
        """Returns the cursor of the last returned batch."""
        return self._loader.state_dict()
