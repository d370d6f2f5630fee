"""Training stacks: their own trainers and loaders on packed data, resumable, one file for each stack.

`transformers` and `trl` hold trainers, `lightning` a data module, `torchdata` a loader and a node, `megatron` a data
iterator, `verl` a scheduler. The modules of Megatron and verl import without their stacks; the others need theirs.
The names of this package itself need torch alone.
"""

from packhorse.client.trainers._data import PackedData
from packhorse.client.trainers.lightning import PackedDataModule
from packhorse.client.trainers.megatron import MegatronIterator, MegatronStep, create_megatron_iterator
from packhorse.client.trainers.megatron_batch import MegatronBatch, get_megatron_batch
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
