"""Counts of each component of a mixture in one epoch, compared with what the mixture prescribes.

Leaves reading streams to `proof.epoch_audit`. To count how often each sequence came, it stores all ids of the epoch: 16
bytes a sequence.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from packhorse.client import BinBlock
from packhorse.proof.redactions import num_redacted
from packhorse.types import Component


@dataclass(kw_only=True)
class ComponentReport:
    """Counts of one component in an audit.

    Example:
        >>> web = Component(name="web", num_bins=100, first_epoch=1, first_position=30, num_taken=90)
        >>> ComponentReport(component=web, bins=90, times={1: 80, 2: 10}).epochs
        '1.30 to 2.20'
    """

    component: Component
    """The component, with its share of the epoch."""
    bins: int = 0
    """Its bins that trainers got."""
    sequences: int = 0
    """Its streamed sequences, with repeats."""
    tokens: int = 0
    """Tokens of the streamed sequences, with repeats."""
    times: dict[int, int] = field(default_factory=dict)
    """t → number of sequences that trainers got t times, for each t from 1."""
    bins_left_out: int = 0
    """Its bins that no trainer got, because their positions were skipped, or are outside of the audited range."""
    sequences_left_out: int = 0
    """Sequences in the bins that were left out."""
    whole_times: dict[int, int] = field(default_factory=dict)
    """Like `times`, but for the whole epoch, including bins that were left out."""
    masked: int = 0
    """Sequences, counted above, that a takedown masks from the loss."""
    replaced: int = 0
    """Sequences, counted above, whose tokens a takedown replaces."""

    @property
    def epochs(self) -> str:
        """The range of the component's own epochs that came, in words; 1.30 is 30 % into its epoch 1."""
        component = self.component
        bounds = (component.first_position / component.num_bins, component.end / component.num_bins)
        return " to ".join(f"{component.first_epoch + bound:.2f}" for bound in bounds)

    def problems(self) -> Iterator[str]:
        """Yields differences from the mixture."""
        component = self.component
        bins = self.bins + self.bins_left_out
        if bins != component.num_taken:
            yield f"{component.name}: {bins:,} bins came; the mixture's epoch takes {component.num_taken:,}"
        least, most = times_of(component)
        for times, num_sequences in sorted(self.whole_times.items()):
            if not least <= times <= most:
                yield (
                    f"{component.name}: {num_sequences:,} sequences came {times} times; in its epochs {self.epochs} "
                    f"each comes {least} to {most} times"
                )
        num_distinct = sum(self.whole_times.values())
        if least > 0 and num_distinct != component.num_sequences:
            yield (
                f"{component.name}: {num_distinct:,} sequences came; in its epochs {self.epochs} each of "
                f"its {component.num_sequences:,} does"
            )


def times_of(component: Component) -> tuple[int, int]:
    """Returns how many times a sequence of a component comes in an epoch of the mixture, as (fewest, most).

    Example:
        >>> times_of(Component(name="web", num_bins=10, first_position=5, num_taken=20))
        (1, 3)
    """
    if not component.num_taken:
        return 0, 0
    # Of the component's own epochs, bins [first_position, end) hold some as a whole, and touch others in part: a
    # sequence comes once in each whole epoch, and at most once in each other. -(-a // b) rounds a / b up.
    first, end, num_bins = component.first_position, component.end, component.num_bins
    num_whole = max(end // num_bins - -(-first // num_bins), 0)
    num_touched = -(-end // num_bins) - first // num_bins
    return num_whole, num_touched


class MixtureTally:
    """Counts the sequences of blocks by component.

    Args:
        components: the components of the mixture, in the order of their ids.
    """

    def __init__(self, components: tuple[Component, ...]) -> None:
        self._reports = [ComponentReport(component=component) for component in components]
        # The entries of each component's blocks: those that trainers got, and those that were left out.
        self._came: list[list[NDArray[np.void]]] = [[] for _ in components]
        self._left_out: list[list[NDArray[np.void]]] = [[] for _ in components]

    def add(
        self, block: BinBlock, entries: NDArray[np.void], is_counted: NDArray[np.bool_], *, is_left_out: bool = False
    ) -> None:
        """Counts a block.

        Args:
            block: a block of a stream of the mixture, with S sequences.
            entries: (id, first token) of the n sequences that count: [n].
            is_counted: whether each sequence counts, or is repeated to fill the last step: bool [S], of which n True.
            is_left_out: whether no trainer got the block.
        """
        if block.component_ids is None:  # no bin of the block holds a sequence
            return
        component_of_sequences = block.component_of_sequences()
        assert component_of_sequences is not None  # as `block.component_ids`
        component_ids = component_of_sequences[is_counted]  # [n], as the arrays below
        lengths = block.lengths[is_counted]
        redactions = None if block.redactions is None else block.redactions[is_counted]
        is_bin = (block.positions >= 0) & (block.component_ids >= 0)  # neither repeated nor empty
        num_bins = np.bincount(block.component_ids[is_bin], minlength=len(self._reports))  # of each component
        for component_id, report in enumerate(self._reports):
            ours = component_ids == component_id
            if is_left_out:
                report.bins_left_out += int(num_bins[component_id])
                report.sequences_left_out += int(ours.sum())
                self._left_out[component_id].append(entries[ours])
                continue
            report.bins += int(num_bins[component_id])
            report.sequences += int(ours.sum())
            report.tokens += int(lengths[ours].sum(dtype=np.int64))
            masked, replaced = num_redacted(None if redactions is None else redactions[ours])
            report.masked += masked
            report.replaced += replaced
            self._came[component_id].append(entries[ours])

    def reports(self) -> list[ComponentReport]:
        """Returns the report of each component, in order."""
        for report, came, left_out in zip(self._reports, self._came, self._left_out, strict=True):
            report.times = _counts_by_times(came)
            report.whole_times = _counts_by_times([*came, *left_out]) if left_out else report.times
        return self._reports


def _counts_by_times(entries: list[NDArray[np.void]]) -> dict[int, int]:
    """Returns t → number of entries that came t times, for each t from 1."""
    if not entries:
        return {}
    _, times = np.unique(np.concatenate(entries), return_counts=True)
    return dict(Counter(times.tolist()))
