"""Glue to training stacks: their own trainers and loaders, packed and resumable, one file a stack.

`transformers` and `trl` hold trainers, `lightning` a data module, `torchdata` a loader and a node, `megatron` a data
iterator, `verl` a scheduler. Importing one of them needs that stack, but for these two. What is here needs torch alone.
"""

from packhorse.client.trainers._data import PackedData
from packhorse.client.trainers.lightning import PackedDataModule
from packhorse.client.trainers.megatron import (
    MegatronBatch,
    MegatronIterator,
    MegatronStep,
    create_megatron_iterator,
    get_megatron_batch,
)
from packhorse.client.trainers.verl import VerlScheduler

__all__ = [
    "MegatronBatch",
    "MegatronIterator",
    "MegatronStep",
    "PackedData",
    "PackedDataModule",
    "VerlScheduler",
    "create_megatron_iterator",
    "get_megatron_batch",
]
