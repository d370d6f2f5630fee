"""How many groups there are and how large they are, in the words of every command that shows them."""

from packhorse.dataset import GroupRecord


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
