"""The prepared folder on disk: the names of its files, and the JSON files beside the pool.

Leaves the manifest to `manifest`, arrays to `arrays`, and reading back to `load`.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from packhorse.packing import Template, canonical_templates

MANIFEST, COUNTS, TEMPLATES, POOLS = "manifest.json", "counts.json", "templates.json", "pools.npy"


class PreparedDatasetError(ValueError):
    """A prepared folder is missing, truncated, altered or inconsistent; the message says what and where."""


DATA_FILES = (COUNTS, TEMPLATES, POOLS)
"""The files that the manifest always holds checksums of."""
STARTS, OVER_LENGTH = "starts.npy", "over_length.npy"
"""Files of some folders only: where each pool entry begins in its sequence, and which sequences were too long."""
GROUPS, MEMBERS, MEMBER_ORDER = "groups.npy", "members.npy", "member_order.npy"
"""Files of grouped datasets only: the groups, their members, and, where these do not ascend by id, their order."""
DROPPED_GROUPS = "dropped_groups.npy"
"""Of some of them: which groups were left out, so that none of them is taken for a new one when more of it comes."""
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
SEQPACK_POOLS = "pools"
"""The folder of pool files in seqpack's layout."""


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


def render_counts(counts: Mapping[int, int]) -> bytes:
    """Returns counts.json: length → count, by ascending length."""
    return _json({str(length): int(counts[length]) for length in sorted(counts)})


def render_templates(templates: Mapping[Template, int]) -> bytes:
    """Returns templates.json: [[lengths], multiplicity] in canonical order."""
    return _json([[list(template), multiplicity] for template, multiplicity in canonical_templates(templates)])


def parse_counts(data: bytes) -> Counter[int]:
    """Reads counts.json; a ValueError where it is something else."""
    content = _parsed(data)
    if not isinstance(content, dict) or not all(_is_count(count) for count in content.values()):
        raise ValueError("not an object of length → count")
    counts = Counter({int(length): count for length, count in content.items()})
    if not all(_is_length(length) for length in counts):
        raise ValueError("not every length is in [1, 2^31)")
    return counts


def parse_templates(data: bytes) -> Counter[Template]:
    """Reads templates.json; a ValueError where it is something else."""
    content = _parsed(data)
    templates: Counter[Template] = Counter()
    for entry in content if isinstance(content, list) else [None]:
        match entry:
            case [[*lengths], multiplicity] if all(map(_is_length, lengths)) and _is_count(multiplicity):
                templates[tuple(lengths)] += multiplicity
            case _:
                raise ValueError("not a list of [[lengths], multiplicity]")
    return templates


def _is_length(value: object) -> bool:
    return type(value) is int and 0 < value < 2**31


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _parsed(data: bytes) -> object:
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _json(content: object) -> bytes:
    return (json.dumps(content, separators=(",", ":")) + "\n").encode()
