"""A refusal to be dealt over the ranks once more.

accelerate's `prepare` gives a DataLoader around an IterableDataset to rank 0, which deals its batches to the others. A
PackedDataset has given each rank its own bins already, so the other ranks' would be lost, and ranks would wait for one
another for ever once rank 0 fails to cut a batch. Owns the look at who iterates.
"""

import sys
from types import FrameType

_DEALERS = ("DataLoaderDispatcher.__iter__", "IterableDatasetShard.__iter__")


def refuse_dispatching() -> None:
    """Raises where accelerate iterates in order to deal out; seen in this process and in workers forked from it.

    Raises:
        ValueError: it does.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "accelerate.data_loader" and frame.f_code.co_qualname in _DEALERS:
            raise ValueError(
                "accelerate deals this DataLoader's batches over the ranks, but a PackedDataset is divided over them "
                "already; do not pass the DataLoader to accelerator.prepare, or train with create_packed_dataloader, "
                "whose loader prepare leaves as it is"
            )
        frame = frame.f_back
