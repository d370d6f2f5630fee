"""The prepared folder on disk: the names of its files, and which folders are prepared ones.

Leaves reading files safely to `plain_files`, the manifest to `manifest`, counts and templates to
`json_files`, arrays to `arrays`, and the folder as a whole to `load`.
"""

from pathlib import Path

MANIFEST, COUNTS, TEMPLATES, POOLS = "manifest.json", "counts.json", "templates.json", "pools.npy"
"""Files of every folder: the facts, the length histogram, the plan, and the ids sorted by length."""

DATA_FILES = (COUNTS, TEMPLATES, POOLS)
"""The files that the manifest always holds checksums of."""
STARTS, OVER_LENGTH = "starts.npy", "over_length.npy"
"""Files of some folders: the first token of each entry in its sequence, and the sequences that were too long."""
GROUPS, MEMBERS, MEMBER_ORDER = "groups.npy", "members.npy", "member_order.npy"
"""Files of grouped datasets: the groups, their members and, if these do not ascend by id, their order by id."""
DROPPED_GROUPS = "dropped_groups.npy"
"""A file of some grouped datasets: the groups that were left out. An append needs them: without the list, further rows
of such a group would look like a new group."""
RESOURCES, CLASSES = "resources.npy", "classes.npy"
"""Files of datasets with resources: each member's amount of each resource, and the sizes of the plan's classes."""
KEYS, KEY_ENDS, KEY_ORDER, KEY_IDS = "keys.npy", "key_ends.npy", "key_order.npy", "key_ids.npy"
"""Files of datasets with keys: the table from key to id and back, see `keys`."""
INPUTS, SKIPPED = "inputs.jsonl", "skipped.jsonl"
"""Files of some folders: the files that were read and the rows that were skipped, if too many for the manifest."""
FILES = (
    MANIFEST,
    *DATA_FILES,
    STARTS,
    OVER_LENGTH,
    GROUPS,
    MEMBERS,
    MEMBER_ORDER,
    DROPPED_GROUPS,
    RESOURCES,
    CLASSES,
    KEYS,
    KEY_ENDS,
    KEY_ORDER,
    KEY_IDS,
    INPUTS,
    SKIPPED,
)
"""Every file that a prepared folder can have."""
VERSIONS = "versions"
"""The folder of earlier versions of a dataset that has grown: versions/1, versions/2, …, each a prepared folder."""
TOKENS = "tokens"
"""The folder of token files, in a dataset that was prepared from text."""
SEQPACK_POOLS = "pools"
"""The folder of pool files in seqpack's layout."""


def is_prepared(folder: Path) -> bool:
    """Returns whether a folder holds a file that every prepared dataset has, or seqpack's folder of pools.

    The dataset need not be complete.

    Example:
        >>> is_prepared(Path("datasets/corpus")), is_prepared(Path("datasets"))
        (True, False)
    """
    return any((folder / name).exists() for name in (MANIFEST, *DATA_FILES, SEQPACK_POOLS))


def datasets_below(folder: Path) -> list[Path]:
    """Returns the prepared folders directly below a folder, by name, without hidden ones.

    There are none if the folder is itself prepared, or cannot be read.

    Example:
        >>> datasets_below(Path("no-such-folder"))
        []
    """
    try:
        if (folder / MANIFEST).exists():
            return []
        return sorted(each for each in folder.iterdir() if each.name[0] != "." and (each / MANIFEST).is_file())
    except OSError:
        return []
