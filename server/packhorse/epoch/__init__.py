"""The epoch as a function: which sequence sits where, for any seed, epoch, rank and worker. NumPy and Numba."""

from packhorse.epoch.compilation import compile_kernels
from packhorse.epoch.keys import derive_key, independent_seed
from packhorse.epoch.materialize import materialize_epoch
from packhorse.epoch.permutation import Permutation
from packhorse.epoch.plan_index import PlanIndex
from packhorse.epoch.stream import EpochStream, StepPlace
from packhorse.epoch.topology import ADDED, RemainderPolicy, StreamMode, Topology
from packhorse.epoch.view import Bins, EpochView, Locations, PoolArray

__all__ = [
    "ADDED",
    "Bins",
    "EpochStream",
    "EpochView",
    "Locations",
    "Permutation",
    "PlanIndex",
    "PoolArray",
    "RemainderPolicy",
    "StepPlace",
    "StreamMode",
    "Topology",
    "compile_kernels",
    "derive_key",
    "independent_seed",
    "materialize_epoch",
]
