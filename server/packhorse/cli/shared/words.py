"""Sentences that several commands print of a dataset or a plan."""

from packhorse.dataset import GroupRecord, Manifest

CUT_OFF = (
    "the time limit ended planning early. The next run may plan otherwise and then has another digest, which refuses "
    "this one's cursors. For the same plan every time take --algorithm best-fit, or a larger --time-limit-seconds."
)


def groups_line(groups: GroupRecord, num_sequences: int) -> str:
    """Returns it in one line.

    Example:
        >>> record = GroupRecord(
        ...     by="every 2 rows", n_groups=5, n_dropped=1, most_sequences=2, max_sequences_per_bin=8, ids_ascend=True
        ... )
        >>> groups_line(record, 10)
        'groups: 5 by every 2 rows, 1 left out, of 10 sequences; at most 2 in a group and 8 in a bin'
    """
    left_out = f", {groups.n_dropped:,} left out" if groups.n_dropped else ""
    return (
        f"groups: {groups.n_groups:,} by {groups.by}{left_out}, of {num_sequences:,} sequences; at most "
        f"{groups.most_sequences:,} in a group and {groups.max_sequences_per_bin:,} in a bin"
    )


def real_tokens(manifest: Manifest) -> str:
    """Returns what a plan's efficiency is without the tokens that rooms add; empty where they add none."""
    if manifest.own_tokens == manifest.total_tokens:
        return ""
    return (
        f"{manifest.own_tokens / manifest.total_capacity:.2%} of capacity; the efficiency above also counts "
        f"{manifest.total_tokens - manifest.own_tokens:,} tokens of --extra-tokens and --align"
    )
