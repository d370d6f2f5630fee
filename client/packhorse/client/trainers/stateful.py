"""`PackedStatefulDataLoader`: torchdata's StatefulDataLoader, whose state goes on under any topology.

Owns the way from a loader's state to its dataset; leaves how the state is read to `cursor`.
"""

from typing import Any

try:
    from torchdata.stateful_dataloader import StatefulDataLoader
except ModuleNotFoundError:
    raise ImportError("PackedStatefulDataLoader needs torchdata: install torchdata") from None


class PackedStatefulDataLoader(StatefulDataLoader):
    """A StatefulDataLoader over a PackedDataset, instead of torchdata's own.

    `state_dict()` is torchdata's. `load_state_dict` takes it, or a batch's cursor, under another world size, batch size
    or number of workers too, where torchdata asks for as many workers as saved it.

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
        """Continues after the last batch that the saved loader handed out.

        Raises:
            ValueError: it is no such state, or of another seed.
        """
        super().load_state_dict({})  # an iteration that was begun is left
        if state_dict:
            self.dataset.load_state_dict(state_dict)
