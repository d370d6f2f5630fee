"""Sentences that commands print about a dataset's manifest."""

from collections.abc import Iterator

from packhorse.dataset import GroupRecord, KeyRecord, Manifest

CUT_OFF = (
    "the time limit ended planning early. Preparing again may give another plan, whose digest refuses cursors of "
    "this one. For the same plan every time, use --algorithm best-fit or a larger --time-limit-seconds."
)


def groups_line(groups: GroupRecord, num_sequences: int) -> str:
    """Returns how sequences were grouped, in one line.

    Example:
        >>> record = GroupRecord(
        ...     by="pair", num_groups=5, num_dropped=1, most_sequences=2, max_sequences_per_bin=8, ids_ascend=True
        ... )
        >>> groups_line(record, 10)
        'groups: 5 by pair, 1 left out, of 10 sequences; at most 2 in a group and 8 in a bin'
    """
    shared = (
        "" if groups.shared_tokens is None else f"; {groups.shared_tokens:,} tokens stand in another of their group"
    )
    left_out = f", {groups.num_dropped:,} left out" if groups.num_dropped else ""
    return (
        f"groups: {groups.num_groups:,} by {groups.by}{left_out}, of {num_sequences:,} sequences; at most "
        f"{groups.most_sequences:,} in a group and {groups.max_sequences_per_bin:,} in a bin{shared}"
    )


def resource_lines(manifest: Manifest) -> Iterator[str]:
    """Yields a line for each resource: how much all sequences need, the most that one needs, and how full bins are."""
    item = "group" if manifest.is_grouped else "sequence"
    for each in manifest.resources:
        full = f"; bins are {each.total / (each.cap * manifest.num_bins):.2%} full of {each.cap:,}" if each.cap else ""
        yield f"{each.name}: {each.total:,} of column {each.column!r}, at most {each.most:,} a {item}{full}"


def keys_text(keys: KeyRecord) -> str:
    """Returns how many keys there are, and from which column."""
    return f"{keys.num_keys:,} of column {keys.column!r}, {keys.num_bytes:,} bytes"


def real_tokens_text(manifest: Manifest) -> str:
    """Returns how full bins are of sequences' own tokens; empty if rooms are as large as their sequences."""
    if manifest.own_tokens == manifest.total_tokens:
        return ""
    if manifest.options.extra_tokens < 0:
        left_out = f"{manifest.own_tokens - manifest.fed_tokens:,} tokens are predicted and not fed (--extra-tokens -1)"
        return f"{manifest.fed_tokens / manifest.total_capacity:.2%} of capacity; {left_out}"
    return (
        f"{manifest.own_tokens / manifest.total_capacity:.2%} of capacity; the efficiency above also counts "
        f"{manifest.total_tokens - manifest.own_tokens:,} tokens of --extra-tokens and --align"
    )
