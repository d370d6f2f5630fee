"""Refuses accelerate's own division of batches over ranks: `refuse_dispatching`.

Leaves which rank this process is to `ranks`.
"""

import sys
from types import FrameType

_DEALERS = ("DataLoaderDispatcher.__iter__", "IterableDatasetShard.__iter__")
"""Methods of accelerate that divide a DataLoader's batches over the ranks."""


def refuse_dispatching() -> None:
    """Raises a ValueError if accelerate iterates a dataset to divide its batches over the ranks.

    It looks for accelerate's methods on the stack. A forked worker's stack still has its parent's frames.
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
