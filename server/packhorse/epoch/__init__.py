"""The epoch as a function: which sequence sits where, for any seed, epoch, rank and worker. NumPy and Numba."""

from packhorse.epoch.assignment.assign import Assignment, StreamLocations
from packhorse.epoch.assignment.balance import MAX_BINS_PER_OPTIMIZER_STEP, arrange
from packhorse.epoch.assignment.waiting import Waiting, idle_share, waiting_of, waiting_of_plan
from packhorse.epoch.bins import Bins, PoolArray, joined
from packhorse.epoch.compile import compile_drawing, compile_finding, compile_kernels
from packhorse.epoch.kernels.permutation import Permutation
from packhorse.epoch.keys import derive_key, independent_seed
from packhorse.epoch.materialize import materialize_epoch
from packhorse.epoch.plan_index import PlanIndex
from packhorse.epoch.shuffle_quality import ShuffleQuality, bin_mates_again, shuffle_quality
from packhorse.epoch.sources.groups import GroupedSource, Groups
from packhorse.epoch.sources.join import MAX_ROWS, JoinedSource
from packhorse.epoch.sources.mixture import Chain, Mixture, Stage, WeightsBy, WhenOut, bin_shares, parting
from packhorse.epoch.sources.mixture_epoch import Given, MixtureEpoch
from packhorse.epoch.sources.prepared import EpochView
from packhorse.epoch.sources.skip import SkipSource
from packhorse.epoch.sources.source import Component, Locations, Source
from packhorse.epoch.sources.windows import MAX_WINDOWS, WindowedView
from packhorse.topology import Topology

__all__ = [
    "MAX_BINS_PER_OPTIMIZER_STEP",
    "MAX_ROWS",
    "MAX_WINDOWS",
    "Assignment",
    "Bins",
    "Chain",
    "Component",
    "EpochView",
    "Given",
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
    "compile_drawing",
    "compile_finding",
    "compile_kernels",
    "derive_key",
    "idle_share",
    "independent_seed",
    "joined",
    "materialize_epoch",
    "parting",
    "shuffle_quality",
    "waiting_of",
    "waiting_of_plan",
]
