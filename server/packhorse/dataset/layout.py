"""The prepared folder on disk: the names of its files, reading them safely, and dataclasses as JSON.

Anything may have been put into a folder: only plain files are opened, so that nothing waits for a fifo, and an object
must have the fields and types that its dataclass declares. Leaves ranges to the dataclass, the manifest to `manifest`,
arrays to `arrays`, and the folder as a whole to `load`.
"""

import errno
import hashlib
import io
import json
import math
import os
import stat
import types
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

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
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a fifo would wait otherwise
    except (FileNotFoundError, NotADirectoryError):
        below = datasets_below(path.parent) if path.name == MANIFEST else []
        if below:
            raise PreparedDatasetError(
                f"{path.parent.name} holds datasets, but is not one: name one, such as {named(below[0])}"
            ) from None
        raise PreparedDatasetError(f"{named(path)} is missing; prepare the dataset again") from None
    except OSError as error:
        if error.errno not in _ABOUT_THE_FILE:
            raise
        raise PreparedDatasetError(f"{named(path)} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PreparedDatasetError(f"{named(path)} is not a plain file; prepare the dataset again")
    return os.fdopen(descriptor, "rb")


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


LATER = {"is_later": True}
"""Metadata of a field that objects of earlier releases lack. It is written only where it is not its default."""


def as_object(value: Any) -> Any:
    """Turns a dataclass, and those in it, into what `json.dumps` takes, without later fields at their defaults."""
    if is_dataclass(value):
        held = ((each, getattr(value, each.name)) for each in fields(value))
        return {each.name: as_object(own) for each, own in held if each.metadata != LATER or own != each.default}
    if isinstance(value, Mapping):
        return {name: as_object(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_object(item) for item in value]
    return value


def check_fields(kind: type, content: object, path: str = "") -> None:
    """Compares an object's keys and values with a dataclass's fields, nested ones too.

    Args:
        kind: the dataclass. Its fields are of int, float, bool, str, Literal, dict[str, …], tuple[…, ...], dataclasses,
            and unions.
        content: what `json.loads` returned.
        path: what messages put before a field's name.

    Raises:
        ValueError: a field is missing, unknown, or of another type, or a later one states its default. A bool is no
            int, and a float is finite.
    """
    if not isinstance(content, dict):
        raise ValueError(f"{path.removesuffix('.') or 'it'} is not an object")
    names = [f.name for f in fields(kind)]
    defaults = {f.name: f.default for f in fields(kind) if f.metadata == LATER}
    missing = [name for name in names if name not in content and name not in defaults]
    if missing:
        raise ValueError(f"lacks {_listed(missing, path)}")
    unknown = sorted(content.keys() - set(names))
    if unknown:
        raise ValueError(f"has fields that this release does not know: {_listed(unknown, path)}")
    hints = get_type_hints(kind)
    for name, value in content.items():
        _check_value(hints[name], value, path + name)
        if name in defaults and value == defaults[name]:
            stated = "null" if value is None else value
            raise ValueError(f"states {path + name} {stated}, which is the default and must be left out")


def _check_value(hint: Any, value: object, name: str) -> None:
    if not _fits(hint, value, name):
        raise ValueError(f"{name} is {repr(value)[:60]}, which is no {getattr(hint, '__name__', hint)}")


def _fits(hint: Any, value: object, name: str) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return isinstance(value, str) and value in arguments
    if origin in (Union, types.UnionType):
        if value is None:
            return types.NoneType in arguments
        return any(_fits(argument, value, name) for argument in arguments if argument is not types.NoneType)
    if origin is dict:
        return isinstance(value, Mapping) and all(_fits(arguments[1], item, name) for item in value.values())
    if origin is tuple:
        return isinstance(value, list) and all(_fits(arguments[0], item, name) for item in value)
    if hint is float:
        return type(value) is float and math.isfinite(value)
    if hint is str:
        return isinstance(value, str) and _is_text(value)
    if hint in (int, bool, types.NoneType):
        return type(value) is hint
    check_fields(hint, value, f"{name}.")
    return True


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which can neither be printed nor sent
        return False
    return True


def _listed(names: list[str], path: str) -> str:
    listed = ", ".join(repr(path + name)[:60] for name in names[:6])
    return listed + (", …" if len(names) > 6 else "")
