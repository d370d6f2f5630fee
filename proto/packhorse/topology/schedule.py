"""A batch size that changes during training: the global batch size as a function of the run's position.

Owns the phases, their text form, and the positions of an epoch at which they begin. Leaves the division of a phase
among ranks and steps to `Topology`.
"""

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from typing import NamedTuple

from packhorse.parameters import parameter
from packhorse.topology.checks import checked_integer, quoted

_TOKENS_OF_SUFFIX = {"T": 10**12, "B": 10**9, "M": 10**6, "K": 10**3}
"""Suffix → tokens. The greatest first: `_written_begin` takes the first that divides a number of tokens."""


class BatchPhase(NamedTuple):
    """A global batch size, and where in the run it begins.

    Example:
        >>> BatchPhase(begin=250_000_000_000, in_tokens=True, size=1536)
        BatchPhase(begin=250000000000, in_tokens=True, size=1536)
    """

    begin: int
    """Where the phase begins, counted from the run's beginning over all epochs; at least 0."""
    in_tokens: bool
    """Whether `begin` counts tokens of full bins instead of bins."""
    size: int
    """Global batch size: bins of all ranks in one optimizer step, at least 1."""


@dataclass(frozen=True, slots=True)
class BatchSchedule:
    """Global batch sizes that change during a run.

    A phase begins after a number of bins, counted from the run's beginning over all epochs. With a suffix K, M, B or T
    the number is of tokens instead, and every bin counts as max_seq_len tokens, as in Megatron. An optimizer step has
    the size of the phase in which it begins.

    Example:
        >>> schedule = BatchSchedule.parse("0:768 250B:1536")
        >>> schedule.phases[1].size, str(schedule)
        (1536, '0:768 250B:1536')
        >>> str(schedule.of_epoch(3, num_bins=50_000_000, max_seq_len=2048))  # by positions of epoch 3
        '0:1536'

    Raises:
        ValueError: there is no phase, the first does not begin at 0, or they do not ascend.
    """

    phases: tuple[BatchPhase, ...]
    """Phases in the order of their beginnings."""

    def __post_init__(self) -> None:
        """Checks every phase."""
        for phase in self.phases:
            checked_integer("batch_schedule: where a phase begins", phase.begin, 0)
            checked_integer("batch_schedule: a phase's global batch size", phase.size, 1)
        if not self.phases or self.phases[0].begin != 0:
            raise ValueError(
                parameter("batch_schedule") + f" {quoted(str(self))} must begin with a phase at 0, e.g. 0:768 250B:1536"
            )
        # Whether a number of bins and one of tokens ascend is seen in `of_epoch`, which knows a bin's tokens.
        for before, after in pairwise(self.phases):
            if after.begin <= before.begin and after.in_tokens == before.in_tokens:
                raise ValueError(
                    parameter("batch_schedule")
                    + f" {quoted(str(self))} has phases that do not ascend; write them in order"
                )

    @classmethod
    def parse(cls, text: "str | BatchSchedule") -> "BatchSchedule":
        """Reads `BEGIN:SIZE` of every phase, separated by spaces or commas. A schedule is returned as it is.

        Raises:
            ValueError: the text is something else.
        """
        if isinstance(text, BatchSchedule):
            return text
        if not isinstance(text, str):
            raise ValueError(parameter("batch_schedule") + f" must be like '0:768 250B:1536', got {quoted(str(text))}")
        return cls(tuple(map(_phase, text.replace(",", " ").split())))

    def __str__(self) -> str:
        """`BEGIN:SIZE` of every phase, separated by spaces, which `parse` reads."""
        return " ".join(f"{_written_begin(phase)}:{phase.size}" for phase in self.phases)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Global batch size of every phase."""
        return tuple(phase.size for phase in self.phases)

    def of_epoch(self, epoch: int, *, num_bins: int, max_seq_len: int) -> "BatchSchedule":
        """Returns the phase at the beginning of an epoch and all later ones; their begins are positions of this epoch.

        Args:
            epoch: 0-based.
            num_bins: bins in an epoch.
            max_seq_len: a bin's capacity in tokens.

        Raises:
            ValueError: phases in tokens and phases in bins do not ascend together.
        """
        begins = [phase.begin // max_seq_len if phase.in_tokens else phase.begin for phase in self.phases]
        for (begin_before, begin), phase in zip(pairwise(begins), self.phases[1:], strict=True):
            if begin <= begin_before:
                raise ValueError(
                    parameter("batch_schedule")
                    + f" has phases that do not ascend: {_written_begin(phase)} is {begin} bins "
                    f"of {max_seq_len} tokens, and the phase before it begins at {begin_before}"
                )
        positions = [begin - epoch * num_bins for begin in begins]
        current = sum(position <= 0 for position in positions) - 1  # index of the phase in which the epoch begins
        return BatchSchedule(
            tuple(
                BatchPhase(begin=max(position, 0), in_tokens=False, size=phase.size)
                for position, phase in zip(positions[current:], self.phases[current:], strict=True)
            )
        )


def _phase(text: str) -> BatchPhase:
    """Reads `BEGIN:SIZE`."""
    begin, _, size = text.partition(":")
    suffix = begin[-1:].upper()
    in_tokens = suffix in _TOKENS_OF_SUFFIX
    wrong = ValueError(
        parameter("batch_schedule")
        + f" has a phase {quoted(text)}, which is not BEGIN:SIZE: BEGIN in bins, or in tokens with a "
        "suffix K, M, B or T, and SIZE in bins of all ranks, e.g. 250B:1536"
    )
    try:
        count = Decimal(begin[:-1]) * _TOKENS_OF_SUFFIX[suffix] if in_tokens else Decimal(int(begin))
        phase = BatchPhase(begin=int(count), in_tokens=in_tokens, size=int(size))
    except (InvalidOperation, ValueError, OverflowError):
        raise wrong from None
    if phase.begin != count:  # as 1.5 tokens
        raise wrong
    return phase


def _written_begin(phase: BatchPhase) -> str:
    """Returns where a phase begins as `BatchSchedule.parse` reads it, such as 250B."""
    if not phase.in_tokens:
        return str(phase.begin)
    if phase.begin == 0:  # every suffix divides it
        return "0K"
    suffix = next((suffix for suffix, tokens in _TOKENS_OF_SUFFIX.items() if phase.begin % tokens == 0), "K")
    return f"{Decimal(phase.begin) / _TOKENS_OF_SUFFIX[suffix]:f}{suffix}"
