"""Glue to training stacks: their own trainers and loaders, packed and resumable, one file a stack.

`transformers` and `trl` hold trainers, `lightning` a data module, `torchdata` a loader. Importing one of them needs
that stack. What is here needs torch alone.
"""

from packhorse.client.stacks._data import PackedData
from packhorse.client.stacks.lightning import PackedDataModule

__all__ = ["PackedData", "PackedDataModule"]
