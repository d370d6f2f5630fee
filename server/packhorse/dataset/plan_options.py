"""`PlanOptions`: the options of a plan, which its manifest records and its digest covers.

Owns their fields and defaults, and the rules of rooms and of context parallelism that they make. Leaves the range of
each to `packhorse.prepare.options`, and the rules between fields of a manifest to `manifest`.
"""

from dataclasses import dataclass, field
from typing import Literal

from packhorse.dataset._fields import LATER
from packhorse.parameters import parameter
from packhorse.topology import DEFAULT_COST_CAP_PERCENT, ContextRule, RoomRule

OverLength = Literal["error", "drop", "truncate", "split"]
"""Treatment of sequences that are too long for a bin."""

Keep = Literal["head", "tail"]
"""Which end of a truncated sequence stays in the plan."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options of a plan: with the counts, they determine it."""

    max_seq_len: int
    """A bin's capacity in tokens, in [1, 2^31)."""
    algorithm: str = "auto"
    """The packer: "auto", or a name in `packhorse.packing.PACKERS`."""
    max_sequences_per_bin: int | None = None
    """The most sequences in a bin. By default there is no limit."""
    over_length: OverLength = "error"
    """What happens to a sequence longer than max_seq_len. "error" refuses it, "drop" leaves it out, "truncate" keeps as
    many of its tokens as fit, and "split" keeps all, in pieces, but refuses it if it takes of a resource. The manifest
    counts these sequences and the lost tokens, and over_length.npy lists them.
    """
    keep: Keep = "head"
    """Which end of a truncated sequence stays: "head", its first tokens, or "tail", its last."""
    align: int = 1
    """A sequence's room in its bin is a multiple of this many tokens, as context and tensor parallelism need."""
    extra_tokens: int = 0
    """Tokens kept free for each sequence in addition to its own, before rounding (for BOS, EOS). -1 leaves out the last
    token of each, which trainers that shift labels predict and never read.
    """
    tokens_per_rank: int | None = field(default=None, metadata=LATER)
    """For dynamic context parallelism: each rank computes this many tokens at a time, and max_seq_len / tokens_per_rank
    ranks, a power of two, share a bin. By default a rank takes a whole bin.
    """
    cost_cap_percent: int | None = field(default=None, metadata=LATER)
    """With `tokens_per_rank`: the most that sequences may cost on each of their ranks, in percent of a rank full of
    short sequences. A sequence that costs more gets more ranks than its tokens need. By default 300.
    """

    @property
    def context(self) -> ContextRule | None:
        """How bins are laid over groups of ranks; None if a rank takes a bin.

        Raises:
            ValueError: the options do not make a rule.
        """
        if self.tokens_per_rank is None:
            return None
        ranks, rest = divmod(self.max_seq_len, max(1, self.tokens_per_rank))
        is_power_of_two = ranks & (ranks - 1) == 0  # 8 & 7 is 0, and 6 & 5 is 4
        if self.tokens_per_rank < 1 or rest or not is_power_of_two:
            raise ValueError(
                parameter("max_seq_len")
                + f" {self.max_seq_len} must be a power of two times "
                + parameter("tokens_per_rank")
                + f" {self.tokens_per_rank}"
            )
        cap = DEFAULT_COST_CAP_PERCENT if self.cost_cap_percent is None else self.cost_cap_percent
        return ContextRule(self.tokens_per_rank, ranks, cap)

    @property
    def rooms(self) -> RoomRule:
        """The rule from a sequence's length to its room in a bin."""
        return RoomRule(self.max_seq_len, self.align, self.extra_tokens)
