"""Options of a plan: the arguments of `prepare` that shape it, checked.

Owns which values they may have and go together; leaves what they do to the passes.
"""

from typing import get_args

from packhorse.dataset import Keep, OverLength, PrepareOptions
from packhorse.packing import PACKERS, checked_rule
from packhorse.topology import checked_integer


def checked_options(
    *,
    max_seq_len: int,
    algorithm: str = "auto",
    max_sequences_per_bin: int | None = None,
    over_length: OverLength = "error",
    keep: Keep = "head",
    align: int = 1,
    extra_tokens: int = 0,
) -> PrepareOptions:
    """Checks those arguments of `prepare` that shape the plan, which see."""
    if over_length not in get_args(OverLength):
        raise ValueError(f"over_length must be one of {', '.join(get_args(OverLength))}, got {over_length!r}")
    if keep not in get_args(Keep):
        raise ValueError(f"keep must be one of {', '.join(get_args(Keep))}, got {keep!r}")
    if keep == "tail" and over_length != "truncate":
        raise ValueError(f"keep 'tail' is for over_length 'truncate'; with {over_length!r} nothing is cut off")
    if algorithm != "auto" and algorithm not in PACKERS:
        raise ValueError(f"unknown algorithm {algorithm!r}; there are: auto, {', '.join(sorted(PACKERS))}")
    if max_sequences_per_bin is not None:
        max_sequences_per_bin = checked_integer("max_sequences_per_bin", max_sequences_per_bin, 1)
    rooms = checked_rule(max_seq_len, align, extra_tokens)
    if rooms.longest < 1:
        raise ValueError(
            f"no sequence fits max_seq_len {max_seq_len} with align {align} and extra_tokens {extra_tokens}: not one "
            "token of its own is left; raise --max-seq-len"
        )
    return PrepareOptions(
        max_seq_len=rooms.max_seq_len,
        algorithm=algorithm,
        max_sequences_per_bin=max_sequences_per_bin,
        over_length=over_length,
        keep=keep,
        align=rooms.align,
        extra_tokens=rooms.extra_tokens,
    )
