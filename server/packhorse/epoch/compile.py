"""Compiles the loops of an epoch before the first request, by running each on a tiny epoch.

Leaves how a loop is compiled, and its cache, to `packhorse.compiling`.
"""

import numpy as np

from packhorse.epoch.assignment import Assignment
from packhorse.epoch.bins import PoolArray, read_only
from packhorse.epoch.plan_index import PlanIndex
from packhorse.epoch.sources.groups import GroupedSource, Groups
from packhorse.epoch.sources.mixture import Mixture
from packhorse.epoch.sources.prepared import EpochView
from packhorse.epoch.sources.renumbered import JoinedSource
from packhorse.epoch.sources.stages import Component, Stage
from packhorse.epoch.sources.unfilled import Outline
from packhorse.epoch.sources.windows import WindowedView
from packhorse.topology import Balance, RoomRule, Topology

_ZERO = np.zeros(1, dtype=np.int64)
"""A single position, template or copy of a template: number 0."""
_FIRST_TOKENS = np.zeros(2, dtype=np.uint32)
"""First tokens of a pool of pieces. Those beyond 2^32 (int64) are so rare that their loops are compiled when needed."""


def compile_kernels(*, wide: bool = False) -> None:
    """Compiles every kernel of an epoch for both id types, uint32 and int64, or loads it from Numba's cache.

    Example:
        >>> compile_kernels()  # takes seconds the first time, then reads the cache

    Args:
        wide: whether to compile them for plans with wide tables (`PlanIndex.is_wide`) too, which few datasets have.
    """
    plan = PlanIndex.build({(1, 1): 1}, {1: 2}, 2)  # one bin with two sequences
    for each in (plan, plan.widened()) if wide else (plan,):
        _compile_first(each)
        _compile_rest(each)


def _compile_first(plan: PlanIndex) -> None:
    """Compiles what every stream of bins needs: finding bins, and drawing their ids.

    A plan with wide tables may be drawn with 32 or with 64 bits, others with 32 only.
    """
    for draws_64_bits in (False, True) if plan.is_wide else (False,):
        view = EpochView(plan, np.arange(2, dtype=np.uint32), seed=0, epoch=0, wide=draws_64_bits)
        columns = {"ids": np.empty(2, np.uint32), "lengths": np.empty(2, np.int32)}
        view.find(_ZERO, Outline.of(1))
        view.draw(templates=_ZERO, copies=_ZERO, bounds=np.array([0, 2]), columns=columns)


def _compile_rest(plan: PlanIndex) -> None:
    """Compiles the other loops, the most often needed ones first."""
    pools: list[PoolArray] = [np.arange(2, dtype=np.uint32), np.arange(2, dtype=np.int64)]
    views = [EpochView(plan, pool, seed=0, epoch=0) for pool in pools]
    for views_of_components in (views[:1] * 2, views):  # ids of one type, or of both
        components = [_unchanging(str(number), view) for number, view in enumerate(views_of_components)]
        Mixture(components, [Stage({"0": 1, "1": 1})], seed=0).epoch(0).bins([0, 1])
    joined = Component.of("joined", lambda epoch: JoinedSource(views[0], rows_per_bin=2))
    Mixture([joined], [Stage({"joined": 1})], seed=0).epoch(0).bins([0])
    Assignment(views[0], Topology(world_size=2, batch_size=2, balance=Balance.MICRO_STEP)).bins(range(1), rank=0)
    for pool, view in zip(pools, views, strict=True):
        EpochView(plan, pool, seed=0, epoch=0, first_tokens=_FIRST_TOKENS).bins([0])
        view.bins([0])
        GroupedSource(view, _pairs()).bins([0])
        WindowedView(plan, pool, seed=0, epoch=0, num_windows=2).bins([0])
        WindowedView(plan, pool, seed=0, epoch=0, num_windows=2).locate([0])
        view.locate([0])


def _pairs() -> Groups:
    """Returns two groups of two members."""
    table = np.array([[0, 2], [1, 4]])  # (id, end of its members)
    members = np.ones((4, 2), dtype=np.int64)  # (id, length)
    return Groups(table=read_only(table), members=read_only(members), rooms=RoomRule(2), max_sequences_per_bin=4)


def _unchanging(name: str, view: EpochView) -> Component:
    """Returns a component of a mixture all of whose epochs are `view`."""
    return Component.of(name, lambda epoch: view)
