"""The prepared folder on disk: its files, written whole or not at all.

Owns file names, the JSON files beside the pool and the atomic write; leaves reading back to `load`.
"""

import hashlib
import json
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from packhorse.packing import Template, canonical_templates

MANIFEST, COUNTS, TEMPLATES, POOLS = "manifest.json", "counts.json", "templates.json", "pools.npy"
DATA_FILES = (COUNTS, TEMPLATES, POOLS)
"""The files that the manifest always holds checksums of."""
STARTS, OVER_LENGTH = "starts.npy", "over_length.npy"
"""Files of some folders only: where each pool entry begins in its sequence, and which sequences were too long."""


def render_counts(counts: Mapping[int, int]) -> bytes:
    """Returns counts.json: length → count, by ascending length."""
    return _json({str(length): int(counts[length]) for length in sorted(counts)})


def render_templates(templates: Mapping[Template, int]) -> bytes:
    """Returns templates.json: [[lengths], multiplicity] in canonical order."""
    return _json([[list(template), multiplicity] for template, multiplicity in canonical_templates(templates)])


def parse_counts(data: bytes) -> Counter[int]:
    """Reads counts.json; a ValueError where it is something else."""
    content = json.loads(data)
    if not isinstance(content, dict) or not all(isinstance(count, int) for count in content.values()):
        raise ValueError("not an object of length → count")
    return Counter({int(length): count for length, count in content.items()})


def parse_templates(data: bytes) -> Counter[Template]:
    """Reads templates.json; a ValueError where it is something else."""
    content = json.loads(data)
    templates: Counter[Template] = Counter()
    for entry in content if isinstance(content, list) else [None]:
        match entry:
            case [[*lengths], int(multiplicity)] if all(isinstance(length, int) for length in lengths):
                templates[tuple(lengths)] += multiplicity
            case _:
                raise ValueError("not a list of [[lengths], multiplicity]")
    return templates


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_file(path: Path) -> None:
    """Makes a file's or folder's content durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def written_whole(output: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Gives a folder beside `output` to write into, and renames it to `output` at the end.

    After an exception nothing is left behind and an existing `output` is as it was. Files are made durable before the
    rename, so a crash leaves the old folder or the new one, never half of one.

    Args:
        output: the folder to be.
        overwrite: whether an existing `output` may be replaced.

    Raises:
        FileExistsError: `output` exists and may not be replaced.
    """
    output = output.resolve()
    if output.exists() and not overwrite:
        raise FileExistsError(f"{output.name} exists already; give another output, or --overwrite to replace it")
    output.parent.mkdir(parents=True, exist_ok=True)
    tag = secrets.token_hex(4)
    partial = output.with_name(f".{output.name}.{tag}.partial")
    partial.mkdir()
    try:
        yield partial
        for path in [*partial.rglob("*"), partial]:
            sync_file(path)
        if output.exists():
            replaced = output.with_name(f".{output.name}.{tag}.replaced")
            output.rename(replaced)
            partial.rename(output)
            shutil.rmtree(replaced) if replaced.is_dir() else replaced.unlink()
        else:
            partial.rename(output)
        sync_file(output.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _json(content: object) -> bytes:
    return (json.dumps(content, separators=(",", ":")) + "\n").encode()
