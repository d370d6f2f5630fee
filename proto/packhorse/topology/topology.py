"""How an epoch's bins are divided over ranks and workers.

Owns the arithmetic of steps, ranks, workers, slots and windows. Leaves which bin of a window goes to which rank, and
what a last step that is not full holds, to the server's assignments.
"""

from dataclasses import dataclass, fields, replace

from packhorse.topology.checks import checked_integer
from packhorse.topology.choices import Balance, RemainderPolicy, StreamMode, as_choice

ADDED = -1
"""Position of a bin that the remainder policy added."""

DEFAULT_COST_LINEAR = 24_576
"""Cost of a token beside attention, in units of one attended pair: six times a hidden size of 4,096."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Topology:
    """The shape of a run: ranks, workers, batches, and who waits for whom.

    G = world_size · batch_size bins make a step. At step s rank r takes the positions
    start_position + s·G + r·batch_size + [0, batch_size). Worker s mod workers_per_rank serves step s, which is the
    order in which a PyTorch DataLoader asks its workers, so a rank's batches do not depend on their number.

    With a `balance`, the positions of `accumulation` steps form a window, and change places within it.

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
    start_position: int = 0
    """The position where step 0 begins, at least 0."""
    remainder: RemainderPolicy = RemainderPolicy.SPREAD
    """What happens to a last step that is not full."""
    mode: StreamMode = StreamMode.PARTITION
    """Whether the ranks share the epoch."""
    accumulation: int = 1
    """Steps that make one optimizer step, at least 1. Of no effect without a balance."""
    balance: Balance = Balance.NONE
    """Where ranks wait for each other."""
    cost_linear: int = DEFAULT_COST_LINEAR
    """Cost of a token beside attention: a sequence of L tokens costs cost_linear · L + L². At least 0."""

    def __post_init__(self) -> None:
        """Checks every field."""
        for name in ("world_size", "workers_per_rank", "batch_size", "accumulation"):
            object.__setattr__(self, name, checked_integer(name, getattr(self, name), 1))
        for name in ("start_position", "cost_linear"):
            object.__setattr__(self, name, checked_integer(name, getattr(self, name), 0))
        for name, kind in (("remainder", RemainderPolicy), ("mode", StreamMode), ("balance", Balance)):
            object.__setattr__(self, name, as_choice(name, kind, getattr(self, name)))
        if self.mode is StreamMode.INDEPENDENT and self.balance is not Balance.NONE:
            raise ValueError("balance must be none where mode is independent: such ranks share no bins to balance")

    def __repr__(self) -> str:
        """What differs from one rank with one worker and one bin a step."""
        given = ((field.name, getattr(self, field.name), field.default) for field in fields(self))
        differs = (
            f"{name}={str(value)!r}" if isinstance(value, str) else f"{name}={value}"
            for name, value, default in given
            if value != default
        )
        return f"Topology({', '.join(differs)})"

    @property
    def bins_per_step(self) -> int:
        """G: bins that the ranks of an epoch take in one step."""
        return self.batch_size * (self.world_size if self.mode is StreamMode.PARTITION else 1)

    @property
    def steps_per_window(self) -> int:
        """Steps whose positions may change places: `accumulation` with a balance, else 1."""
        return 1 if self.balance is Balance.NONE else self.accumulation

    @property
    def bins_per_window(self) -> int:
        """Positions that may change places."""
        return self.steps_per_window * self.bins_per_step

    @property
    def step_stride(self) -> int:
        """From one step of a worker's stream to its next."""
        return self.workers_per_rank if self.mode is StreamMode.PARTITION else 1

    def of_one_stream(self) -> "Topology":
        """Returns the topology of a stream of INDEPENDENT mode, which has its epoch to itself."""
        return replace(self, world_size=1, workers_per_rank=1, mode=StreamMode.PARTITION)

    def num_left(self, num_bins: int) -> int:
        """Bins of the epoch from start_position on; a ValueError where the start lies beyond the end."""
        if self.start_position > num_bins:
            raise ValueError(f"start_position must be in [0, {num_bins}], got {self.start_position}")
        return num_bins - self.start_position

    def num_full_steps(self, num_bins: int) -> int:
        """Steps that the epoch's own bins fill."""
        return self.num_left(num_bins) // self.bins_per_step

    def num_tail_bins(self, num_bins: int) -> int:
        """Bins of the last step where they do not fill it; 0 where they do."""
        return self.num_left(num_bins) % self.bins_per_step

    def num_steps(self, num_bins: int) -> int:
        """Steps that every rank takes from start_position to the epoch's end."""
        partial = self.num_tail_bins(num_bins) > 0 and self.remainder is not RemainderPolicy.DROP
        return self.num_full_steps(num_bins) + int(partial)

    def num_bins_dropped(self, num_bins: int) -> int:
        """Bins left out; 0 unless the policy is DROP."""
        return self.num_tail_bins(num_bins) if self.remainder is RemainderPolicy.DROP else 0

    def worker_of(self, step: int) -> int:
        """The worker that serves a step."""
        return step % self.workers_per_rank

    def next_step(self, worker: int, first_step: int) -> int:
        """The first step ≥ first_step that a worker serves."""
        stride = self.step_stride
        return first_step + (worker % stride - first_step) % stride

    def worker_steps(self, worker: int, num_bins: int, *, first_step: int = 0) -> range:
        """The steps ≥ first_step that a worker serves, ascending."""
        return range(self.next_step(worker, first_step), self.num_steps(num_bins), self.step_stride)

    def position_after(self, step: int, num_bins: int) -> int:
        """The position to resume at once `step` has been consumed by every rank, under any topology.

        Within a window that is its beginning: the window's other bins have not all been consumed.
        """
        if step + 1 == self.num_steps(num_bins):
            return min(self.start_position + (step + 1) * self.bins_per_step, num_bins)
        windows = (step + 1) // self.steps_per_window
        return self.start_position + windows * self.bins_per_window

    def steps_into_window(self, step: int, num_bins: int) -> int:
        """How many steps of an unfinished window have been consumed once `step` has."""
        return 0 if step + 1 == self.num_steps(num_bins) else (step + 1) % self.steps_per_window

    def place(self, offset: int) -> tuple[int, int]:
        """(rank, slot) of the bin at `offset` in [0, G) of its step."""
        return divmod(offset, self.batch_size)
