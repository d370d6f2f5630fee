"""What is read, how it is loaded and how lengths are packed on demand: options as objects.

Owns `Run`, `LoaderOptions` and `PackOptions`; the shape of a run is re-exported from `packhorse.topology`. Leaves how a
batch looks to `presets/batch_format`, and how servers are reached to `connecting`.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields, replace
from multiprocessing import get_all_start_methods
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, TypeVar

from packhorse.client.streams.stream import StreamHeader
from packhorse.client.transport.requests import checked_balance, invalid, shortened
from packhorse.formats.asking import RetryPolicy
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

if TYPE_CHECKING:
    import torch
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
    "StreamMode",
    "Topology",
]


_Options = TypeVar("_Options", bound=Any)

NO_SKIPS = Skips()

Skip = Skips | str | Mapping[int, Skips | str]


@dataclass(frozen=True, slots=True)
class Run:
    """What a run reads: a dataset, in the order of a seed, without the positions that it skips.

    Example:
        >>> run = Run("corpus", seed=1, skip={3: "1200:1300"})
        >>> str(run.skips(3)), str(run.skips(4))
        ('1200:1300', '')

    Raises:
        ValueError: a field is out of range, a range is empty, or a text is no range.
    """

    dataset: str
    """The dataset's name on the server."""
    _: KW_ONLY
    seed: int = 0
    """In [0, 2^64)."""
    epoch: int = 0
    """To begin with."""
    skip: Skip = NO_SKIPS
    """Positions to leave out of every epoch, e.g. "1200:1300", or of some: `{3: "1200:1300"}`. Ranges may be added
    after a cursor, never before it."""

    def __post_init__(self) -> None:
        """Checks every field."""
        if not isinstance(self.dataset, str) or not self.dataset:
            raise ValueError(f"dataset must be the dataset's name, got {shortened(self.dataset)}")
        object.__setattr__(self, "seed", checked_integer("seed", self.seed, 0, 2**64 - 1))
        object.__setattr__(self, "epoch", checked_integer("epoch", self.epoch, 0))
        skip: Skip
        if isinstance(self.skip, Mapping):
            skip = {checked_integer("an epoch of skip", epoch, 0): _skips(some) for epoch, some in self.skip.items()}
        else:
            skip = _skips(self.skip)
        object.__setattr__(self, "skip", skip)

    def skips(self, epoch: int) -> Skips:
        """Returns what one epoch leaves out."""
        skips = self.skip.get(epoch, NO_SKIPS) if isinstance(self.skip, Mapping) else self.skip
        assert isinstance(skips, Skips)
        return skips

    def check_skips(self, epoch: int, header: StreamHeader) -> None:
        """Refuses a skip that has no effect in an epoch, or leaves nothing of it.

        Raises:
            ValueError: a range lies beyond the epoch's end, or every bin is left out.
        """
        asked, left_out = self.skips(epoch).ranges, header.skipped.ranges
        whole = header.num_bins + header.skipped.num_skipped
        for first, end in asked:
            if not any(first < other_end and other < end for other, other_end in left_out):
                raise ValueError(f"skip {first}:{end} is beyond the end of epoch {epoch}, which has {whole:,} bins")
        if asked and not header.num_bins:
            raise ValueError(
                f"skip {self.skips(epoch)} leaves out all {whole:,} bins of epoch {epoch}; train on another epoch"
            )

    def __str__(self) -> str:
        """The dataset, the seed and what is skipped."""
        if isinstance(self.skip, Mapping):
            skip = "; ".join(f"{epoch}: {some}" for epoch, some in sorted(self.skip.items()))
        else:
            skip = str(self.skip)
        return f"{self.dataset!r}, seed={self.seed}" + (f", skip={skip!r}" if skip else "")


def _skips(given: Skips | str) -> Skips:
    if isinstance(given, Skips):
        return given
    if not isinstance(given, str):
        raise ValueError(f"skip must be like '1200:1300', or a dict from epoch to such; got {shortened(given)}")
    return Skips.parse([given])


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderOptions:
    """How one process loads its batches: which rank it is, its workers, and what they make ahead.

    Example:
        >>> LoaderOptions(num_workers=4, device="cuda:1").prefetch_factor
        4

    Raises:
        ValueError: a field is out of range.
    """

    num_workers: int = 2
    """Worker processes; 0 to make batches in this process, in the thread that fetches them."""
    device: "torch.device | str | None" = None
    """Where tensors go; None for the current CUDA device where there is one, else the CPU."""
    prefetch_factor: int = 4
    """Batches that each worker makes ahead."""
    depth: int = 2
    """Batches brought to the device ahead."""
    rank: "tuple[int, int] | DeviceMesh | None" = None
    """Data-parallel (rank, world_size); or the device mesh over which a model is divided, whose model-parallel ranks
    get the same batches. None: as Megatron, torch.distributed or the launcher says."""
    multiprocessing_context: BaseContext | str | None = None
    """How workers are started; None for a safe choice. Where this process uses gRPC through another package,
    "forkserver" is safe."""

    def __post_init__(self) -> None:
        """Checks every number; the rank and the device are checked where they are used."""
        for name, least in (("num_workers", 0), ("prefetch_factor", 1), ("depth", 1)):
            checked_integer(name, getattr(self, name), least)
        context, methods = self.multiprocessing_context, get_all_start_methods()
        if isinstance(context, str) and context not in methods:
            raise ValueError(f"multiprocessing_context must be one of {', '.join(methods)}, got {context!r}")


def with_words(options: _Options, **words: Any) -> _Options:
    """Returns options with the flat words of a function put into their fields.

    Example:
        >>> with_words(Topology(world_size=8), balance="micro-step").balance
        <Balance.MICRO_STEP: 'micro-step'>

    Raises:
        ValueError: a word and the object say two things.
    """
    default = {each.name: each.default for each in fields(options)}
    changes = {}
    for name, word in words.items():
        own = getattr(options, name)
        if word == default[name] or word == own:
            continue
        if own != default[name]:
            kind = type(options).__name__
            raise ValueError(f"{name} is given twice, as {shortened(word)} and in {kind}({name}={own!r}); give it once")
        changes[name] = word
    return replace(options, **changes) if changes else options


def as_run(dataset: str | Run, seed: int = 0) -> Run:
    """Returns a Run as it is, and one for a bare name with a seed; a ValueError where both give a seed."""
    return with_words(dataset if isinstance(dataset, Run) else Run(dataset), seed=seed)


@dataclass(frozen=True, kw_only=True, slots=True)
class PackOptions:
    """How lengths are packed on demand: by `Client.pack_sequences`, `pack_rollouts` and `pack_pairs`.

    Example:
        >>> PackOptions(algorithm="next-fit", balance="micro-step").balance
        <Balance.MICRO_STEP: 'micro-step'>

    Raises:
        InvalidRequestError: a field is out of range; names it.
    """

    algorithm: str = "best-fit"
    """The packer."""
    max_sequences_per_bin: int | None = None
    """The most sequences in a bin, or the most pairs; None for no limit."""
    balance: Balance | str = Balance.NONE
    """Where ranks wait for each other. "micro-step": at every step, so that its bins cost the same. "optimizer-step":
    once in the whole call, so that each rank's bins cost the same in sum."""
    cost_linear: int = DEFAULT_COST_LINEAR
    """Cost of a token beside attention: a sequence of L tokens costs cost_linear · L + L².
    `packhorse.client.cost_linear_of` computes a model's."""
    allow_empty: bool = False
    """Where there are fewer sequences than bins, the other bins are empty instead of an error raised."""

    def __post_init__(self) -> None:
        """Checks what needs no server; the service knows the packers and the largest numbers."""
        if not isinstance(self.algorithm, str):
            raise invalid("algorithm", f"must be a packer's name, got {type(self.algorithm).__name__}")
        if not isinstance(self.allow_empty, bool):
            raise invalid("allow_empty", f"must be True or False, got {type(self.allow_empty).__name__}")
        object.__setattr__(self, "balance", checked_balance("balance", self.balance))


DEFAULT_PACKING = PackOptions()
