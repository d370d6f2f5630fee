"""All figures of one prepared dataset in one object, for `packhorse inspect`, the status page and Python.

Owns `DatasetReport` and how it is filled: the figures of the dataset's own plan and of its locality windows are
computed here. Leaves other context lengths and waiting to `context_lengths`, training without packing to `unpacked`,
ranks that share bins to `context_plans`, and plots to `analysis.plots`.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from packhorse.analysis.context_lengths import ContextLength, context_lengths
from packhorse.analysis.context_plans import BANDWIDTH, ContextPlan, context_plan
from packhorse.analysis.counts import histogram_of, lengths_before
from packhorse.analysis.unpacked import Unpacked, ways_without_packing
from packhorse.analysis.waiting import WaitingRow, waiting_rows
from packhorse.dataset import PreparedDataset, Version, stats_of, versions_of
from packhorse.epoch import ShuffleQuality, bin_mates_again, shuffle_quality
from packhorse.packing import PackingStats
from packhorse.parameters import parameter
from packhorse.topology import Topology

_QUANTILES = (0.1, 0.5, 0.9, 0.99)
_NUM_WINDOWS = (1, 8, 32, 128, 512)
"""Numbers of locality windows that are compared; 1 is the global shuffle."""
_CONTEXT_GROUPS = (1, 4, 16, 64)
"""Numbers of context-parallel groups whose waiting is shown, besides the run's own."""
_ACCUMULATION = 8
"""Micro-steps of an optimizer step, if no run is given."""
_MIN_BINS_OF_WINDOW = 16
"""The fewest bins of a window that is compared."""


@dataclass(frozen=True, kw_only=True)
class DatasetReport:
    """A prepared dataset in figures."""

    dataset: PreparedDataset
    stats: PackingStats
    """Bins, padding, and the distance to the proven bound."""
    quantiles: dict[float, int]
    """Quantiles of rooms: q in (0, 1) → the room, in tokens, that a share q of the planned items does not exceed. An
    item is a sequence, or a group if the dataset has groups."""
    mean_room: float
    """Mean room of a planned item, in tokens."""
    real_token_efficiency: float
    """The sequences' own tokens per token of capacity, without `extra_tokens` and alignment."""
    bin_mates_again: float
    """Expected share of a sequence's bin-mates that share a bin with it again in the next epoch, in [0, 1]."""
    context_lengths: list[ContextLength]
    """The dataset's own context length and others around it, ascending."""
    without_packing: list[Unpacked]
    """The usual ways to train without packing."""
    run: Topology | None
    """The shape of the run whose waiting is measured; None if none was given."""
    waiting: list[WaitingRow]
    """Waiting of that run, for each context length; empty without a run, or if ranks share bins."""
    context_plan: ContextPlan | None
    """Figures of how ranks share bins; None if each bin goes to one rank."""
    windows: list[ShuffleQuality]
    """Shuffle quality for several numbers of locality windows; empty unless they were asked for."""

    @property
    def own_waiting(self) -> WaitingRow | None:
        """The row of `waiting` for the run's own context length and world size; None if nothing was measured."""
        if self.run is None or self.context_plan is not None:
            return None
        own = (self.dataset.manifest.max_seq_len, self.run.world_size)
        return next(row for row in self.waiting if (row.max_seq_len, row.world_size) == own)

    def facts(self, num_templates: int = 10) -> dict[str, Any]:
        """Returns everything as JSON values, with the `num_templates` most used templates."""
        return {
            "manifest": json.loads(self.dataset.manifest.render()),
            "versions": [version_facts(version) for version in versions_of(self.dataset.path)],
            "stats": asdict(self.stats),
            "bin_mates_again": self.bin_mates_again,
            "real_token_efficiency": self.real_token_efficiency,
            "templates": [
                [list(template), multiplicity]
                for template, multiplicity in self.dataset.templates.most_common(num_templates)
            ],
            "context_lengths": [choice.facts() for choice in self.context_lengths],
            "without_packing": [asdict(way) for way in self.without_packing],
            "waiting": [row.facts() for row in self.waiting],
            "context_plan": None if self.context_plan is None else self.context_plan.facts(),
            "windows": [asdict(quality) for quality in self.windows],
        }


def dataset_report(
    dataset: PreparedDataset, *, run: Topology | None = None, windows: bool = False, bandwidth: float = BANDWIDTH
) -> DatasetReport:
    """Returns a dataset's figures.

    Example:
        >>> from packhorse.dataset import open_prepared
        >>> report = dataset_report(open_prepared("datasets/corpus"))
        >>> report.stats.n_bins, report.mean_room, report.quantiles[0.5]
        (2, 4.0, 3)

    Args:
        dataset: the prepared dataset.
        run: the shape of a run whose waiting is measured; None for none. If ranks share bins, its world_size counts
            every rank, not context-parallel groups.
        windows: whether locality windows are compared, which reads every sequence.
        bandwidth: GB per second at which a rank receives from ranks with which it shares bins; 0 if receiving takes no
            time.

    Raises:
        ValueError: ranks share bins, and the run's world_size is not a multiple of the ranks of a bin.
    """
    manifest, plan = dataset.manifest, dataset.plan
    by_room = np.argsort(plan.rooms, kind="stable")  # with resources, `plan.rooms` has the classes' order
    ends = np.cumsum(plan.counts[by_room])
    choices = context_lengths(dataset)
    return DatasetReport(
        dataset=dataset,
        stats=stats_of(manifest, dataset.templates),
        quantiles={q: int(plan.rooms[by_room[np.searchsorted(ends, q * ends[-1])]]) for q in _QUANTILES},
        mean_room=manifest.total_tokens / plan.num_sequences,
        real_token_efficiency=manifest.fed_tokens / manifest.total_capacity,
        bin_mates_again=bin_mates_again(plan),
        context_lengths=choices,
        without_packing=ways_without_packing(
            lengths_before(dataset) if dataset.groups is None else histogram_of(dataset.groups.members[:, 1]),
            manifest.options.rooms,
            manifest.options.over_length,
            manifest.options.max_sequences_per_bin,
        ),
        run=run,
        waiting=[] if run is None or manifest.options.context is not None else waiting_rows(choices, dataset, run),
        context_plan=_measured_sharing(dataset, run or Topology(accumulation=_ACCUMULATION), bandwidth),
        windows=quality_rows(dataset) if windows else [],
    )


def _measured_sharing(dataset: PreparedDataset, run: Topology, bandwidth: float) -> ContextPlan | None:
    """Measures how ranks share bins; returns None if the dataset gives each bin to one rank."""
    rule = dataset.manifest.options.context
    if rule is None:
        return None
    context_groups, rest = divmod(run.world_size, rule.max_context_parallel)
    if rest and run.world_size > 1:  # 1 is the default: the user has not said how many ranks there are
        raise ValueError(
            parameter("world_size")
            + f" {run.world_size} is not a multiple of {rule.max_context_parallel}, the ranks that share a bin"
        )
    return context_plan(
        dataset.plan,
        rule,
        context_groups=sorted({*_CONTEXT_GROUPS, max(1, context_groups)}),
        accumulation=run.accumulation,
        bandwidth=bandwidth,
    )


def version_facts(version: Version) -> dict[str, Any]:
    """Returns the facts of a version of a dataset as JSON values.

    Example:
        >>> from packhorse.dataset import versions_of
        >>> [version_facts(version)["num_bins"] for version in versions_of("datasets/corpus")]
        [2]
    """
    manifest = version.manifest
    return {
        "version": version.number,
        "is_current": version.is_current,
        "num_sequences": manifest.num_sequences,
        "num_bins": manifest.num_bins,
        "digest": manifest.digest,
        "path": str(version.path),
    }


def quality_rows(dataset: PreparedDataset) -> list[ShuffleQuality]:
    """Measures the shuffle of a dataset's first epochs, for several numbers of locality windows.

    A group counts as one sequence. Numbers of windows that would leave a window fewer than 16 bins are left out.

    Example:
        >>> from packhorse.dataset import open_prepared
        >>> [row.num_windows for row in quality_rows(open_prepared("datasets/corpus"))]
        [1]
    """
    return [
        shuffle_quality(dataset.plan, dataset.pool, num_windows, first_tokens=dataset.first_tokens)
        for num_windows in _NUM_WINDOWS
        if num_windows == 1 or dataset.plan.num_bins >= _MIN_BINS_OF_WINDOW * num_windows
    ]
