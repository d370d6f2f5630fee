"""Option objects: what a client reads, how it loads batches, and how it packs lengths on demand.

Owns `Run`, `LoaderOptions`, `PackOptions` and `Staleness`, and `with_arguments`, which refuses what is given twice: in
such an object and as an argument. The topology's classes are re-exported from `packhorse.topology`. Leaves a model's
linear cost to `costs`, how a batch looks to `presets/batch_format`, and reaching servers to `connecting`.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields, replace
from multiprocessing import get_all_start_methods
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from packhorse.client.error_texts import invalid
from packhorse.client.transport.requests import checked_balance
from packhorse.formats.retry_policy import RetryPolicy
from packhorse.parameters import parameter
from packhorse.topology import (
    DEFAULT_COST_LINEAR,
    Balance,
    BatchPhase,
    BatchSchedule,
    RemainderPolicy,
    Skips,
    StreamMode,
    Topology,
    checked_integer,
)
from packhorse.topology.checks import quoted
from packhorse.types import StreamHeader

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

__all__ = [
    "DEFAULT_PACKING",
    "Balance",
    "BatchPhase",
    "BatchSchedule",
    "LoaderOptions",
    "PackOptions",
    "RemainderPolicy",
    "RetryPolicy",
    "Run",
    "Skips",
    "Staleness",
    "StreamMode",
    "Topology",
]


_Options = TypeVar("_Options", bound=Any)
"""A frozen dataclass of options."""

NO_SKIPS = Skips()
"""Nothing is skipped."""

DEFAULT_LOOKAHEAD_SEQUENCES = 1000
"""Default of `Client.pack_stream`: that of the server's packer, `OnlinePacker`, which a client does not import."""

DEFAULT_DEPTH = 2
"""Default of `LoaderOptions.depth`."""

BalanceName = Literal["none", "micro-step", "optimizer-step"]
"""The names of `Balance`, for type checkers."""

Skip = Skips | str | Mapping[int, Skips | str]
"""Positions to skip in every epoch, or epoch → positions to skip in that epoch."""


@dataclass(frozen=True, slots=True)
class Run:
    """Which bins a client reads: a dataset, the seed of its order, the first epoch, and the positions to skip.

    Example:
        >>> run = Run("corpus", seed=1, skip={3: "1200:1300"})
        >>> str(run.skips(3)), str(run.skips(4))
        ('1200:1300', '')

    Raises:
        ValueError: a field is out of range, or a skip is empty or not a range.
    """

    dataset: str
    """The dataset's name on the server."""
    _: KW_ONLY
    seed: int = 0
    """In [0, 2^64)."""
    epoch: int = 0
    """The first epoch."""
    skip: Skip = NO_SKIPS
    """Positions to leave out of every epoch, e.g. "1200:1300", or of some epochs: `{3: "1200:1300"}`. After a resume
    you may add ranges after the cursor's position, not before it.
    """

    def __post_init__(self) -> None:
        """Checks every field, and turns texts into Skips."""
        if not isinstance(self.dataset, str) or not self.dataset:
            raise ValueError(f"dataset must be the dataset's name, got {quoted(self.dataset)}")
        object.__setattr__(self, "seed", checked_integer("seed", self.seed, 0, 2**64 - 1))
        object.__setattr__(self, "epoch", checked_integer("epoch", self.epoch, 0))
        skip: Skip
        if isinstance(self.skip, Mapping):
            skip = {checked_integer("an epoch of skip", epoch, 0): _skips(given) for epoch, given in self.skip.items()}
        else:
            skip = _skips(self.skip)
        object.__setattr__(self, "skip", skip)

    def skips(self, epoch: int) -> Skips:
        """Returns the positions that one epoch leaves out."""
        skips = self.skip.get(epoch, NO_SKIPS) if isinstance(self.skip, Mapping) else self.skip
        assert isinstance(skips, Skips)
        return skips

    def check_skips(self, epoch: int, header: StreamHeader) -> None:
        """Raises a ValueError for a range beyond the epoch's end, or if every bin is skipped.

        Args:
            epoch: the epoch of the stream.
            header: the stream's header, which says what the server has left out.
        """
        skips = self.skips(epoch)
        num_whole_bins = header.num_bins + header.skipped.num_skipped
        for first, end in skips.ranges:
            # The server leaves out, and names in its header, what lies within the epoch. So a range that meets none of
            # those in the header lies beyond the epoch's end.
            if not any(first < out_end and out_first < end for out_first, out_end in header.skipped.ranges):
                raise ValueError(
                    parameter("skip")
                    + f" {first}:{end} is beyond the end of epoch {epoch}, which has {num_whole_bins:,} bins"
                )
        if skips and not header.num_bins:
            raise ValueError(
                parameter("skip")
                + f" {skips} leaves out all {num_whole_bins:,} bins of epoch {epoch}; train on another epoch"
            )

    def __str__(self) -> str:
        if isinstance(self.skip, Mapping):
            skip = "; ".join(f"{epoch}: {skips}" for epoch, skips in sorted(self.skip.items()))
        else:
            skip = str(self.skip)
        return f"{self.dataset!r}, seed={self.seed}" + (f", skip={skip!r}" if skip else "")


def _skips(given: Skips | str) -> Skips:
    """Returns Skips unchanged, and parses a text such as "1200:1300"."""
    if isinstance(given, Skips):
        return given
    if not isinstance(given, str):
        raise ValueError(
            parameter("skip") + f" must be a text like '1200:1300', or a dict from epoch to text; got {quoted(given)}"
        )
    return Skips.parse([given])


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderOptions:
    """How one process loads its batches: its rank, its workers, and how far they prefetch.

    Example:
        >>> LoaderOptions(num_workers=4, device="cuda:1").prefetch_factor
        4

    Raises:
        ValueError: a field is out of range.
    """

    num_workers: int = 2
    """Worker processes; 0 makes batches in a thread of this process."""
    device: "torch.device | str | None" = None
    """The tensors' device; None for the current CUDA device if there is one, else the CPU."""
    prefetch_factor: int = 4
    """Batches that each worker makes ahead."""
    depth: int = DEFAULT_DEPTH
    """Batches copied to the device ahead."""
    rank: "tuple[int, int] | DeviceMesh | None" = None
    """Data-parallel (rank, world_size), or the device mesh of a divided model, whose model-parallel ranks get the same
    batches. None asks Megatron, torch.distributed or the launcher.
    """
    peers: "ProcessGroup | DeviceMesh | None" = None
    """Ranks that get the same batches, because they share a model: a process group, or a mesh's dimension such as
    `mesh["tp"]`. The first rank reads, and sends its batches to the others. None if each rank reads for itself.
    """
    multiprocessing_context: BaseContext | str | None = None
    """How workers are started, e.g. "forkserver", which you need if this process uses gRPC through another package.
    None for a safe choice.
    """

    def __post_init__(self) -> None:
        checked_integer("num_workers", self.num_workers, 0)
        checked_integer("prefetch_factor", self.prefetch_factor, 1)
        checked_integer("depth", self.depth, 1)
        context, methods = self.multiprocessing_context, get_all_start_methods()
        if isinstance(context, str) and context not in methods:
            raise ValueError(f"multiprocessing_context must be one of {', '.join(methods)}, got {context!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class PackOptions:
    """How `Client.pack_sequences`, `pack_rollouts` and `pack_pairs` pack lengths.

    Example:
        >>> PackOptions(algorithm="next-fit", balance="micro-step").balance
        <Balance.MICRO_STEP: 'micro-step'>

    Raises:
        InvalidRequestError: a field is out of range; the error names the field.
    """

    algorithm: str = "best-fit"
    """The packer."""
    max_sequences_per_bin: int | None = None
    """The most sequences, or pairs, in a bin; None for no limit."""
    balance: Balance | str = Balance.NONE
    """Where ranks wait for each other. "micro-step": at every step, so the bins of a step get equal costs.
    "optimizer-step": once in the whole call, so ranks get equal costs in sum. With either, the packer decides how many
    bins there are, and costs decide what is in each; one more round is added if ranks would wait long.
    """
    cost_linear: int = DEFAULT_COST_LINEAR
    """Cost of a token without attention: a sequence of L tokens costs cost_linear · L + L². `cost_linear_of` computes
    it for a model.
    """
    allow_empty: bool = False
    """Whether bins may stay empty if there are fewer sequences than bins; otherwise that is an error."""

    def __post_init__(self) -> None:
        # Packers and numbers are left to the service, which knows the packers' names and the largest numbers.
        if not isinstance(self.algorithm, str):
            raise invalid("algorithm", f"must be a packer's name, got {type(self.algorithm).__name__}")
        if not isinstance(self.allow_empty, bool):
            raise invalid("allow_empty", f"must be True or False, got {type(self.allow_empty).__name__}")
        object.__setattr__(self, "balance", checked_balance("balance", self.balance))


@dataclass(frozen=True, slots=True)
class Staleness:
    """How old the rollouts that a `PackStream` packs may be, and what happens to older ones.

    Example:
        >>> Staleness(2, evict="group").max_versions
        2

    Raises:
        InvalidRequestError: a field is out of range; the error names the field.
    """

    max_versions: int | None = None
    """How many versions of the policy a sequence may be behind the newest when its bin is sent; None for any number."""
    _: KW_ONLY
    evict: Literal["sequence", "group"] = "sequence"
    """What comes back if a sequence is too old: only that sequence, or its whole group."""
    separate_versions: bool = False
    """Whether sequences of different versions share no bin. The oldest version's bins are then sent first."""

    def __post_init__(self) -> None:
        if self.max_versions is not None and (
            not isinstance(self.max_versions, int) or isinstance(self.max_versions, bool) or self.max_versions < 0
        ):
            raise invalid("max_staleness", f"must be an integer of at least 0, got {quoted(self.max_versions)}")
        if self.evict not in ("sequence", "group"):
            raise invalid("evict", f"must be 'sequence' or 'group', got {quoted(self.evict)}")


DEFAULT_PACKING = PackOptions()
"""Best-fit without limits or a balance."""


def with_arguments(options: _Options, **arguments: Any) -> _Options:
    """Returns options in which a function's own arguments replace the fields of the same names.

    An argument that is None was not given, and changes nothing.

    Example:
        >>> with_arguments(Topology(world_size=8), balance="micro-step").balance
        <Balance.MICRO_STEP: 'micro-step'>

    Raises:
        ValueError: something is given twice: as an argument, and in a field, which then differs from its default.
    """
    defaults = {field.name: field.default for field in fields(options)}
    changes = {name: value for name, value in arguments.items() if value is not None}
    for name, value in changes.items():
        if (in_options := getattr(options, name)) != defaults[name]:
            kind = type(options).__name__
            raise ValueError(
                f"{name} is given twice, as {quoted(value)} and in {kind}({name}={in_options!r}); give it once"
            )
    return replace(options, **changes) if changes else options


def as_run(dataset: str | Run, seed: int | None = None) -> Run:
    """Returns the Run, or one of a dataset's name, with the seed; a ValueError if the Run and `seed` both give one."""
    return with_arguments(dataset if isinstance(dataset, Run) else Run(dataset), seed=seed)
