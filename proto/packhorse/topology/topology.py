"""How an epoch's positions are divided over ranks and workers.

Owns the arithmetic of steps, ranks, workers and optimizer steps. Leaves the exchange of bins within an optimizer
step, and what fills a last step that is not full, to `packhorse.epoch`.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from packhorse.parameters import parameter
from packhorse.topology.checks import checked_integer
from packhorse.topology.choices import Balance, RemainderPolicy, StreamMode, as_choice
from packhorse.topology.schedule import BatchSchedule

ADDED = -1
"""The position of every bin that the remainder policy added, which has none in the epoch."""

DEFAULT_COST_LINEAR = 24_576
"""Cost of a token without attention, in attended pairs of tokens: six times a hidden size of 4,096."""


def cost_of(length: Any, cost_linear: int) -> Any:
    """Returns the cost of a sequence, cost_linear · L + L², in attended pairs of tokens.

    Example:
        >>> cost_of(3, 100)
        309

    Args:
        length: L, in tokens: an int, or a NumPy array of int64.
        cost_linear: cost of a token without attention.
    """
    return (cost_linear + length) * length


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive steps of the same size.

    Example:
        >>> Topology(world_size=2, batch_size=3).stretches
        (Stretch(first_step=0, first_offset=0, batch_size=3, bins_per_step=6),)
    """

    first_step: int
    """The first of these steps."""
    first_offset: int
    """The position at which that step begins, counted from start_position."""
    batch_size: int
    """Bins per rank and step."""
    bins_per_step: int
    """Bins of all ranks in a step."""

    def offset_of(self, step: int) -> int:
        """Returns the position at which one of these steps begins, counted from start_position."""
        return self.first_offset + (step - self.first_step) * self.bins_per_step


@dataclass(frozen=True, kw_only=True, repr=False)
class Topology:
    """The shape of a run: ranks, workers, batches, and how ranks share an epoch.

    G = world_size · batch_size bins make a step. At step s rank r takes the positions
    start_position + s·G + r·batch_size + [0, batch_size). Worker s mod workers_per_rank serves step s, which is the
    order in which a PyTorch DataLoader asks its workers, so a rank's batches do not depend on their number.

    With a `balance`, bins are exchanged within the positions of an optimizer step, which has `accumulation` steps.

    With a `batch_schedule`, the first optimizer step that begins at or after a phase's first position has the phase's
    size. A schedule counts from the run's beginning, so call `of_epoch` for the topology of an epoch before you ask for
    steps. Consecutive steps of one size are a stretch; the formula above holds in each, counted from its beginning.

    Example:
        >>> shape = Topology(world_size=4, batch_size=2)
        >>> shape.num_steps(100), shape.position_after(0, 100)
        (13, 8)

    Raises:
        ValueError: a number or choice is out of range; the message names the field.
    """

    world_size: int = 1
    """Data-parallel degree, at least 1."""
    workers_per_rank: int = 1
    """Dataloader workers within a rank, at least 1."""
    batch_size: int = 1
    """Bins per rank and step, at least 1."""
    batch_schedule: BatchSchedule | None = None
    """Instead of `batch_size`: pairs START:BINS, e.g. "0:768 250B:1536". From START on, in bins of the run, or in
    tokens with K, M, B or T, an optimizer step has BINS bins over all ranks.
    """
    start_position: int = 0
    """The position where step 0 begins, at least 0."""
    remainder: RemainderPolicy = RemainderPolicy.SPREAD
    """What happens to a last step that is not full."""
    mode: StreamMode = StreamMode.PARTITION
    """Whether the ranks share the epoch."""
    accumulation: int = 1
    """Steps of one optimizer step, at least 1. It has no effect without a balance or a schedule."""
    balance: Balance = Balance.NONE
    """What is balanced, by where ranks wait for each other."""
    cost_linear: int = DEFAULT_COST_LINEAR
    """Cost of a token without attention: a sequence of L tokens costs cost_linear · L + L². At least 0."""

    def __post_init__(self) -> None:
        """Checks every field, and turns texts into enums and schedules."""
        for name in ("world_size", "workers_per_rank", "batch_size", "accumulation"):
            object.__setattr__(self, name, checked_integer(name, getattr(self, name), 1))
        if self.batch_schedule is not None:
            object.__setattr__(self, "batch_schedule", BatchSchedule.parse(self.batch_schedule))
            if self.batch_size != 1:
                raise ValueError(
                    parameter("batch_size")
                    + " must be left out where there is a "
                    + parameter("batch_schedule")
                    + f", got {self.batch_size}"
                )
        for name in ("start_position", "cost_linear"):
            object.__setattr__(self, name, checked_integer(name, getattr(self, name), 0))
        for name, kind in (("remainder", RemainderPolicy), ("mode", StreamMode), ("balance", Balance)):
            object.__setattr__(self, name, as_choice(name, kind, getattr(self, name)))
        if self.mode is StreamMode.INDEPENDENT and self.balance is not Balance.NONE:
            raise ValueError(
                parameter("balance") + " must be none where mode is independent: such ranks share no bins to balance"
            )
        if self.mode is StreamMode.INDEPENDENT and self.batch_schedule is not None:
            raise ValueError(
                parameter("batch_schedule") + " cannot be given where mode is independent: ranks share no global batch"
            )

    def __repr__(self) -> str:
        """The constructor call with the fields that differ from their defaults."""
        given = ((field.name, getattr(self, field.name), field.default) for field in fields(self))
        differs = (
            f"{name}={value}" if isinstance(value, int) else f"{name}={str(value)!r}"
            for name, value, default in given
            if value != default
        )
        return f"Topology({', '.join(differs)})"

    @cached_property
    def stretches(self) -> tuple[Stretch, ...]:
        """Consecutive steps of the same size, from step 0; the last stretch has no end.

        Raises:
            ValueError: a phase's size does not divide among the ranks, or begins at a number of tokens.
        """
        if self.batch_schedule is None:
            bins = self.batch_size * (self.world_size if self.mode is StreamMode.PARTITION else 1)
            return (Stretch(0, 0, self.batch_size, bins),)
        phases = self.batch_schedule.phases
        if any(phase.in_tokens for phase in phases):
            raise ValueError(
                parameter("batch_schedule") + " has phases in tokens: ask of_epoch for the topology of an epoch"
            )
        found: list[Stretch] = []
        step = offset = 0
        for phase, following in zip(phases, (*phases[1:], None), strict=True):
            num_bins = None if following is None else following.begin - self.start_position - offset  # None: no end
            if num_bins is not None and num_bins <= 0:
                continue  # over before start_position, or before the last optimizer step of an earlier phase ends
            batch_size, rest = divmod(phase.size, self.world_size * self.accumulation)
            if rest:
                raise ValueError(
                    parameter("batch_schedule")
                    + f" {phase.size}, from position {phase.begin} on, does not divide among "
                    + parameter("world_size")
                    + f" {self.world_size} times accumulation {self.accumulation}; take a multiple of "
                    f"{self.world_size * self.accumulation}, or other numbers of ranks or steps"
                )
            found.append(Stretch(step, offset, batch_size, batch_size * self.world_size))
            if num_bins is not None:
                num_optimizer_steps = -(-num_bins // phase.size)
                step, offset = step + num_optimizer_steps * self.accumulation, offset + num_optimizer_steps * phase.size
        return tuple(found)

    @property
    def most_bins_of_rank(self) -> int:
        """Bins of a rank in its largest step."""
        if self.batch_schedule is None:
            return self.batch_size
        return -(-max(self.batch_schedule.sizes) // (self.world_size * self.accumulation))

    @cached_property
    def bins_per_step(self) -> int:
        """G: bins that the ranks that share an epoch take in one step; with a schedule, in its largest step."""
        return max(stretch.bins_per_step for stretch in self.stretches)

    @property
    def steps_per_optimizer_step(self) -> int:
        """Steps that are treated as one optimizer step: `accumulation` with a balance or a schedule, else 1."""
        is_plain = self.balance is Balance.NONE and self.batch_schedule is None
        return 1 if is_plain else self.accumulation

    @property
    def bins_per_optimizer_step(self) -> int:
        """Positions of an optimizer step, whose bins may be exchanged; with a schedule, of its largest."""
        return self.steps_per_optimizer_step * self.bins_per_step

    @property
    def step_stride(self) -> int:
        """Difference between two consecutive steps of a worker's stream."""
        return self.workers_per_rank if self.mode is StreamMode.PARTITION else 1

    def of_one_stream(self) -> "Topology":
        """Returns the topology of one stream of INDEPENDENT mode: one rank with one worker gets the whole epoch."""
        return replace(self, world_size=1, workers_per_rank=1, mode=StreamMode.PARTITION)

    def num_left(self, num_bins: int) -> int:
        """Returns the number of bins from start_position to the epoch's end; a ValueError if the start is beyond it."""
        if self.start_position > num_bins:
            raise ValueError(parameter("start_position") + f" must be in [0, {num_bins}], got {self.start_position}")
        return num_bins - self.start_position

    def of_epoch(self, epoch: int, *, num_bins: int, max_seq_len: int) -> "Topology":
        """Returns the topology of one epoch, whose batch schedule counts positions of this epoch instead of the run.

        Example:
            >>> shape = Topology(world_size=2, batch_schedule="0:4 100:8")
            >>> [shape.of_epoch(epoch, num_bins=60, max_seq_len=8).num_steps(60) for epoch in (0, 1, 2)]
            [15, 13, 8]

        Args:
            epoch: 0-based.
            num_bins: bins in an epoch, without those that are skipped.
            max_seq_len: a bin's capacity in tokens.
        """
        if self.batch_schedule is None:
            return self
        schedule = self.batch_schedule.of_epoch(epoch, num_bins=num_bins, max_seq_len=max_seq_len)
        return replace(self, batch_schedule=schedule)

    def stretch_of(self, step: int) -> Stretch:
        """Returns the stretch that a step belongs to."""
        return self.stretches[self.stretch_number(step)]

    def stretch_number(self, step: int) -> int:
        """Returns the index in `stretches` of the stretch that a step belongs to."""
        return bisect_right(self.stretches, step, key=lambda stretch: stretch.first_step) - 1

    def stretch_at(self, offset: int) -> Stretch:
        """Returns the stretch that a position belongs to; `offset` is the position minus start_position."""
        return self.stretches[bisect_right(self.stretches, offset, key=lambda stretch: stretch.first_offset) - 1]

    def by_stretch(self, steps: range) -> Iterator[tuple[Stretch, range]]:
        """Divides ascending steps by stretch; yields (a stretch, those of the steps that belong to it) in order."""
        number = self.stretch_number(steps.start) if steps else 0
        while steps:
            is_last = number + 1 == len(self.stretches)
            end = steps.stop if is_last else min(steps.stop, self.stretches[number + 1].first_step)
            own = range(steps.start, end, steps.step)
            if own:
                yield self.stretches[number], own
                steps = steps[len(own) :]
            number += 1

    def num_rank_bins(self, steps: range) -> int:
        """Returns the number of bins that a rank gets in the given steps."""
        return sum(len(own) * stretch.batch_size for stretch, own in self.by_stretch(steps))

    def num_full_steps(self, num_bins: int) -> int:
        """Returns the number of steps that are full without bins that the remainder policy adds."""
        num_left = self.num_left(num_bins)
        stretch = self.stretch_at(num_left)
        return stretch.first_step + (num_left - stretch.first_offset) // stretch.bins_per_step

    def num_tail_bins(self, num_bins: int) -> int:
        """Returns the number of bins that are left for a last step that is not full; 0 if every step is full."""
        num_left = self.num_left(num_bins)
        stretch = self.stretch_at(num_left)
        return (num_left - stretch.first_offset) % stretch.bins_per_step

    def num_steps(self, num_bins: int) -> int:
        """Returns the number of steps that every rank takes from start_position to the epoch's end."""
        has_partial_step = self.num_tail_bins(num_bins) > 0 and self.remainder is not RemainderPolicy.DROP
        return self.num_full_steps(num_bins) + (1 if has_partial_step else 0)

    def num_bins_dropped(self, num_bins: int) -> int:
        """Returns the number of bins that the DROP policy leaves out; 0 under every other policy."""
        return self.num_tail_bins(num_bins) if self.remainder is RemainderPolicy.DROP else 0

    def worker_of(self, step: int) -> int:
        """Returns the worker that serves a step."""
        return step % self.workers_per_rank

    def next_step(self, worker: int, first_step: int) -> int:
        """Returns the first step ≥ first_step that a worker serves."""
        stride = self.step_stride
        return first_step + (worker % stride - first_step) % stride

    def worker_steps(self, worker: int, num_bins: int, *, first_step: int = 0) -> range:
        """Returns the steps ≥ first_step that a worker serves, ascending."""
        return range(self.next_step(worker, first_step), self.num_steps(num_bins), self.step_stride)

    def position_after(self, step: int, num_bins: int) -> int:
        """Returns the position at which any topology can resume, once every rank has consumed `step`.

        If `step` is not the last of its optimizer step, this is the optimizer step's beginning, because not all of its
        bins have been consumed. After the epoch's last step under a schedule this is the epoch's end, even if bins were
        dropped: a run that resumes before them could make steps of them in a phase of a smaller size.
        """
        stretch = self.stretch_of(step + 1)
        if step + 1 == self.num_steps(num_bins):
            # With step -1 nothing was consumed, and there is no step at all.
            if step >= 0 and self.batch_schedule is not None:
                return num_bins
            return min(self.start_position + stretch.offset_of(step + 1), num_bins)
        return self.start_position + stretch.offset_of(step + 1 - self.steps_into_optimizer_step(step, num_bins))

    def steps_into_optimizer_step(self, step: int, num_bins: int) -> int:
        """Returns the steps consumed of an unfinished optimizer step, once every rank has consumed `step`."""
        if step + 1 == self.num_steps(num_bins):
            return 0
        return (step + 1 - self.stretch_of(step + 1).first_step) % self.steps_per_optimizer_step
