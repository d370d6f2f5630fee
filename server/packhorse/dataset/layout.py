"""The prepared folder on disk: the names of its files, and reading them safely.

Anything may have been put into a folder: only plain files are opened, so that nothing waits for a fifo. Leaves the
manifest to `manifest`, counts and templates to `_json_files`, arrays to `arrays`, and the folder as a whole to `load`.
"""

import errno
import hashlib
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path

from packhorse.packing import Template, canonical_templates
from packhorse.storage import open_plain

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


def render_counts(counts: Mapping[int, int]) -> bytes:
    """Returns counts.json: length → count, by ascending length."""
    return _json({str(length): int(counts[length]) for length in sorted(counts)})


def render_templates(templates: Mapping[Template, int]) -> bytes:
    """Returns templates.json: [[lengths], multiplicity] in canonical order."""
    return _json([[list(template), multiplicity] for template, multiplicity in canonical_templates(templates)])


def _json(content: object) -> bytes:
    return (json.dumps(content, separators=(",", ":")) + "\n").encode()


_NO_PLAIN_FILE = (errno.EINVAL, errno.EISDIR)
_ABOUT_THE_FILE = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO, errno.ENODEV)


def named(path: Path) -> str:
    """Returns how messages name a file: with its folder's name, without the folder's path."""
    return f"{path.parent.name}/{path.name}"


def open_file(path: Path) -> io.BufferedReader:
    """Opens a plain file for reading.

    Raises:
        PreparedDatasetError: it is missing, cannot be read, or is something else, such as a folder or a fifo.
    """
    try:
        return open_plain(path)
    except (FileNotFoundError, NotADirectoryError):
        below = datasets_below(path.parent) if path.name == MANIFEST else []
        if below:
            raise PreparedDatasetError(
                f"{path.parent.name} holds datasets, but is not one: name one, such as {named(below[0])}"
            ) from None
        raise PreparedDatasetError(f"{named(path)} is missing; prepare the dataset again") from None
    except OSError as error:
        if error.errno in _NO_PLAIN_FILE:
            raise PreparedDatasetError(f"{named(path)} is not a plain file; prepare the dataset again") from None
        if error.errno not in _ABOUT_THE_FILE:
            raise
        raise PreparedDatasetError(f"{named(path)} cannot be read: {error.strerror}") from None


def read_file(path: Path, most_bytes: int) -> bytes:
    """Reads a plain file whole; one of more than `most_bytes` is refused unread.

    Raises:
        PreparedDatasetError: see `open_file`; or it is too large.
    """
    with open_file(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > most_bytes:
            raise PreparedDatasetError(
                f"{named(path)} was altered: it has {size_bytes:,} bytes, and what belongs there has at most "
                f"{most_bytes:,}"
            )
        return file.read(most_bytes)


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a plain file's bytes, in hexadecimal.

    Raises:
        PreparedDatasetError: see `open_file`.
    """
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
