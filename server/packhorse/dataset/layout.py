"""The prepared folder on disk: the names of its files, and which folders are prepared ones.

Leaves reading files safely to `plain_files`, the manifest to `manifest`, counts and templates to `_json_files`, arrays
to `arrays`, and the folder as a whole to `load`.
"""

from pathlib import Path

MANIFEST, COUNTS, TEMPLATES, POOLS = "manifest.json", "counts.json", "templates.json", "pools.npy"


DATA_FILES = (COUNTS, TEMPLATES, POOLS)
"""The files that the manifest always holds checksums of."""
STARTS, OVER_LENGTH = "starts.npy", "over_length.npy"
"""Files of some folders only: where each pool entry begins in its sequence, and which sequences were too long."""
GROUPS, MEMBERS, MEMBER_ORDER = "groups.npy", "members.npy", "member_order.npy"
"""Files of grouped datasets only: the groups, their members, and, where these do not ascend by id, their order."""
DROPPED_GROUPS = "dropped_groups.npy"
"""A file of some grouped datasets: which groups were left out. So none of them is taken for a new one when more of it
comes."""
RESOURCES, CLASSES = "resources.npy", "classes.npy"
"""Files of datasets with resources only: what each member takes of each, and the sizes of each class of the plan."""
KEYS, KEY_ENDS, KEY_ORDER, KEY_IDS = "keys.npy", "key_ends.npy", "key_order.npy", "key_ids.npy"
"""Files of datasets with keys only: the table from key to id and back."""
INPUTS, SKIPPED = "inputs.jsonl", "skipped.jsonl"
"""Files of some folders only: which files were read and which rows were skipped, where a manifest cannot name all."""
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
"""The folder of the tokens that `prepare` made of text."""
SEQPACK_POOLS = "pools"
"""The folder of pool files in seqpack's layout."""


def is_prepared(folder: Path) -> bool:
    """Whether a folder holds a file that only prepared folders hold, complete or not, in either layout.

    Example:
        >>> is_prepared(Path("datasets/corpus")), is_prepared(Path("datasets"))
        (True, False)
    """
    return any((folder / name).exists() for name in (MANIFEST, *DATA_FILES, SEQPACK_POOLS))


def datasets_below(folder: Path) -> list[Path]:
    """Returns the prepared folders right below a folder that is none itself, by name: of a data root, its datasets.

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
