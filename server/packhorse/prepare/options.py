"""The options of a plan, checked: each by itself, and together with groups, shared prefixes and resources.

Owns what `prepare` refuses whatever the input is. Leaves arguments that depend on the input or the output to `job`.
"""

from dataclasses import replace
from typing import get_args

from packhorse.dataset import Keep, OverLength, PlanOptions, PreparedDataset
from packhorse.packing import PACKERS, checked_rule
from packhorse.parameters import parameter
from packhorse.prepare.append.continuing import refuse_other_options
from packhorse.prepare.groups.grouping import Grouping
from packhorse.prepare.input import InputColumns
from packhorse.topology import ContextRule, checked_integer


def check_plan(
    options: PlanOptions, grouping: Grouping | None = None, *, appends_to: PreparedDataset | None = None
) -> None:
    """Refuses options that `prepare` would refuse for any input, so that an error comes before hours of tokenizing.

    Example:
        >>> check_plan(PlanOptions(max_seq_len=8, over_length="drop"), Grouping(size=2))

    Args:
        options: options of the plan.
        grouping: which rows are a group; None for no groups.
        appends_to: the dataset to append to; None for a new dataset.

    Raises:
        ValueError: an option is out of range, options do not go together, or they differ from those of `appends_to`;
            the message names them.
    """
    options = checked_options(options)
    if appends_to is not None:
        refuse_other_options(appends_to, options)
    if grouping is not None:
        refuse_with_groups(options, seqpack=False, skips=False)
    refuse_with_prefixes(options, InputColumns(), grouping)


def plan_and_columns(
    max_seq_len: int | None, length_column: str | None, plan: PlanOptions | None, columns: InputColumns | None
) -> tuple[PlanOptions, InputColumns]:
    """Returns the plan's options, checked, and the columns; a ValueError if one is given twice or not at all."""
    if (max_seq_len is None) == (plan is None):
        raise ValueError("give either " + parameter("max_seq_len") + " or plan=PlanOptions(max_seq_len=…)")
    if length_column is not None and columns is not None:
        raise ValueError(parameter("length_column") + " is given twice: write InputColumns(length=…)")
    options = PlanOptions(max_seq_len=max_seq_len) if max_seq_len is not None else plan
    assert options is not None  # exactly one of the two is given
    return checked_options(options), columns or InputColumns(length=length_column)


def checked_options(options: PlanOptions) -> PlanOptions:
    """Returns a plan's options, checked, with NumPy's integers turned into Python's; a ValueError if one is wrong."""
    if options.over_length not in get_args(OverLength):
        raise ValueError(
            parameter("over_length") + f" must be one of {', '.join(get_args(OverLength))}, got {options.over_length!r}"
        )
    if options.keep not in get_args(Keep):
        raise ValueError(parameter("keep") + f" must be one of {', '.join(get_args(Keep))}, got {options.keep!r}")
    if options.keep == "tail" and options.over_length != "truncate":
        raise ValueError(
            parameter("keep", "tail")
            + " is for "
            + parameter("over_length", "truncate")
            + f"; with {options.over_length!r} nothing is cut off"
        )
    if options.algorithm != "auto" and options.algorithm not in PACKERS:
        raise ValueError(
            "unknown " + parameter("algorithm", options.algorithm) + f"; there are: auto, {', '.join(sorted(PACKERS))}"
        )
    if options.max_seq_len is None:  # a command's flag without a value
        raise ValueError("give " + parameter("max_seq_len") + ": the tokens of a bin, as many as the model's context")
    context = _checked_context(options)
    per_bin = options.max_sequences_per_bin
    rooms = checked_rule(options.max_seq_len, options.align, options.extra_tokens)
    if rooms.longest < 1:
        raise ValueError(
            "no sequence fits "
            + parameter("max_seq_len")
            + f" {rooms.max_seq_len} with align {rooms.align} and "
            + parameter("extra_tokens")
            + f" {rooms.extra_tokens}: not one token of its own is left; raise "
            + parameter("max_seq_len")
        )
    return replace(
        options,
        max_seq_len=rooms.max_seq_len,
        align=rooms.align,
        extra_tokens=rooms.extra_tokens,
        max_sequences_per_bin=None if per_bin is None else checked_integer("max_sequences_per_bin", per_bin, 1),
        # Today's default is written down: a later release may have another.
        cost_cap_percent=None if context is None else context.cost_cap_percent,
    )


def _checked_context(options: PlanOptions) -> ContextRule | None:
    """Returns the rule by which ranks share bins, None without `tokens_per_rank`; a ValueError if options conflict."""
    if options.tokens_per_rank is None:
        if options.cost_cap_percent is not None:
            raise ValueError(
                parameter("cost_cap_percent")
                + " is for plans with "
                + parameter("tokens_per_rank")
                + ": give that too, or leave it out"
            )
        return None
    checked_integer("tokens_per_rank", options.tokens_per_rank, 1)
    if options.algorithm != "auto":
        raise ValueError(parameter("tokens_per_rank") + " has a packer of its own: leave algorithm out")
    if options.max_sequences_per_bin is not None:
        raise ValueError(
            parameter("max_sequences_per_bin") + " does not go with " + parameter("tokens_per_rank") + ": leave it out"
        )
    return options.context


def refuse_with_groups(options: PlanOptions, *, seqpack: bool, skips: bool) -> None:
    """Refuses options that do not go with groups; raises a ValueError.

    Args:
        options: options of the plan.
        seqpack: whether the folder gets seqpack's layout.
        skips: whether bad rows are skipped.
    """
    refuse_cutting_groups(options)
    for name in ("max_sequences_per_bin", "tokens_per_rank"):
        if getattr(options, name) is not None:
            raise ValueError(parameter(name) + " does not go with groups: leave it out")
    if seqpack:
        raise ValueError(
            "seqpack's layout cannot say which sequences are a group: use " + parameter("format", "packhorse")
        )
    if skips:
        raise ValueError(
            parameter("on_bad_row", "skip")
            + " would leave a group without one of its sequences: repair the rows, or leave out their groups"
        )


def refuse_cutting_groups(options: PlanOptions) -> None:
    """Refuses over-length policies that would cut a group; raises a ValueError."""
    if options.over_length in ("truncate", "split"):
        raise ValueError(
            parameter("over_length", options.over_length)
            + " would cut sequences out of their group: choose "
            + parameter("over_length", "error")
            + ", or 'drop', which leaves out whole groups"
        )


def refuse_with_prefixes(options: PlanOptions, columns: InputColumns, grouping: Grouping | None) -> None:
    """Refuses options that do not go with groups that share prefixes; raises a ValueError."""
    if grouping is None or grouping.share_prefixes is None:
        return
    if not options.rooms.is_plain or columns.resources:
        raise ValueError(
            parameter("share_prefixes")
            + " goes without align, extra_tokens and resources, which count for each sequence: leave them out"
        )


def refuse_with_resources(options: PlanOptions, *, seqpack: bool, skips: bool) -> None:
    """Refuses options that do not go with resources; arguments and errors are those of `refuse_with_groups`."""
    if options.over_length == "truncate":
        raise ValueError(
            parameter("over_length", "truncate")
            + " would cut a sequence and not what it takes of a resource: choose "
            + parameter("over_length", "split")
            + ", which splits those that take nothing, or 'drop', which leaves out those that do not fit a bin"
        )
    if options.algorithm not in ("auto", "best-fit"):
        raise ValueError("resources have a packer of their own: leave algorithm out")
    for name in ("max_sequences_per_bin", "tokens_per_rank"):
        if getattr(options, name) is not None:
            raise ValueError(parameter(name) + " does not go with resources: leave it out")
    if seqpack:
        raise ValueError("seqpack's layout does not know resources: use " + parameter("format", "packhorse"))
    if skips:
        raise ValueError(
            parameter("on_bad_row", "skip")
            + " does not go with resources: repair the rows, or leave them out of the input"
        )
