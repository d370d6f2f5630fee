"""The epoch as a function: the sequences of any bin, computed from seed, epoch and position.

This file only exports. `Source` is the interface of an epoch, `EpochView` the epoch of a prepared dataset, and
`Assignment` divides a source among ranks. Everything needs NumPy; Numba makes it fast.
"""

from packhorse.epoch.assignment import Assignment, StreamLocations
from packhorse.epoch.balance import MAX_BINS_PER_OPTIMIZER_STEP, arrange
from packhorse.epoch.bins import Bins, PoolArray, joined
from packhorse.epoch.compile import compile_kernels
from packhorse.epoch.figures.bin_mates import bin_mates_again
from packhorse.epoch.figures.shuffle_quality import ShuffleQuality, shuffle_quality
from packhorse.epoch.figures.waiting import Waiting, idle_share, waiting_of, waiting_of_plan
from packhorse.epoch.permutation import Permutation
from packhorse.epoch.plan_index import Budgets, PlanIndex
from packhorse.epoch.seeds import derive_key, independent_seed
from packhorse.epoch.sources.groups import GroupedSource, Groups
from packhorse.epoch.sources.materialized import materialize_epoch
from packhorse.epoch.sources.mixture import Chain, Mixture, first_difference
from packhorse.epoch.sources.mixture_epoch import BinRange, MixtureEpoch
from packhorse.epoch.sources.prepared import EpochView
from packhorse.epoch.sources.renumbered import MAX_ROWS, JoinedSource, SkipSource
from packhorse.epoch.sources.source import Locations, Source
from packhorse.epoch.sources.stages import Component, Stage, WeightsBy, WhenOut, bin_shares
from packhorse.epoch.sources.windows import MAX_WINDOWS, WindowedView
from packhorse.topology import Topology

__all__ = [
    "MAX_BINS_PER_OPTIMIZER_STEP",
    "MAX_ROWS",
    "MAX_WINDOWS",
    "Assignment",
    "BinRange",
    "Bins",
    "Budgets",
    "Chain",
    "Component",
    "EpochView",
    "GroupedSource",
    "Groups",
    "JoinedSource",
    "Locations",
    "Mixture",
    "MixtureEpoch",
    "Permutation",
    "PlanIndex",
    "PoolArray",
    "ShuffleQuality",
    "SkipSource",
    "Source",
    "Stage",
    "StreamLocations",
    "Topology",
    "Waiting",
    "WeightsBy",
    "WhenOut",
    "WindowedView",
    "arrange",
    "bin_mates_again",
    "bin_shares",
    "compile_kernels",
    "derive_key",
    "first_difference",
    "idle_share",
    "independent_seed",
    "joined",
    "materialize_epoch",
    "shuffle_quality",
    "waiting_of",
    "waiting_of_plan",
]
