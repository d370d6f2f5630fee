"""Adapters for training stacks: their own trainers and loaders on packed data, resumable; one file for each stack.

`transformers` and `trl` have trainers, `lightning` a data module, `torchdata` a loader and a node, `megatron` a data
iterator, and `verl` a scheduler. `transformers`, `trl` and `torchdata` can be imported only if their stack is
installed. Importing the names of this package needs only torch.
"""

from packhorse.trainers._data import PackedData
from packhorse.trainers.lightning import PackedDataModule
from packhorse.trainers.megatron import MegatronIterator, MegatronStep, create_megatron_iterator
from packhorse.trainers.megatron_batch import MegatronBatch, get_megatron_batch
from packhorse.trainers.separation import check_takes_trees, sees_other_sequences
from packhorse.trainers.verl import VerlScheduler

__all__ = [
    "MegatronBatch",
    "MegatronIterator",
    "MegatronStep",
    "PackedData",
    "PackedDataModule",
    "VerlScheduler",
    "check_takes_trees",
    "create_megatron_iterator",
    "get_megatron_batch",
    "sees_other_sequences",
]
