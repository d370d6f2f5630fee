"""Which folders may be replaced by a prepared one: only prepared datasets, and never one that holds an input.

Owns the two checks and their messages. How a folder is replaced is in `replacing`.
"""

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from packhorse.dataset.errors import PreparedDatasetError
from packhorse.dataset.layout import COUNTS, FILES, MANIFEST, SEQPACK_POOLS, TEMPLATES, TOKENS, VERSIONS
from packhorse.dataset.manifest import MOST_MANIFEST_BYTES
from packhorse.dataset.plain_files import read_file
from packhorse.parameters import parameter

_OUR_FIELDS = frozenset({"format_version", "checksums", "digest"})
"""Fields by which our manifest is recognised, of any release."""
_SEQPACK_FIELDS = frozenset({"max_seq_len", "packer", "n_bins"})
"""Fields by which seqpack's manifest is recognised."""
_SEQPACK_FILES = frozenset({MANIFEST, COUNTS, TEMPLATES})
_VERSION = re.compile(r"[1-9][0-9]*")
_SEQPACK_POOL = re.compile(r"[0-9]+\.npy")


def refuse_output(output: Path, *, overwrite: bool, keeps_versions: bool = False) -> None:
    """Refuses an output that exists, unless it is a prepared dataset that may be replaced.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     refuse_output(Path(folder, "new"), overwrite=False)  # nothing is there
        ...     try:
        ...         refuse_output(Path(folder), overwrite=True)
        ...     except FileExistsError as error:
        ...         print("has no manifest.json of a dataset" in str(error))
        True

    Args:
        output: the folder to be written.
        overwrite: whether a prepared folder, ours or seqpack's, may be replaced. Nothing else ever may.
        keeps_versions: whether the new folder holds the earlier versions of the old one. If not, an old folder that has
            earlier versions is not replaced.

    Raises:
        FileExistsError: something is at `output` that may not be replaced; the message says what, and the way out.
    """
    if not os.path.lexists(output):
        return
    obstacle = _obstacle(output)
    if obstacle:
        raise FileExistsError(
            f"{output} is there already and {obstacle}: "
            + parameter("overwrite", True)
            + " replaces a prepared dataset and nothing else; give another output, or move it away yourself"
        )
    if not overwrite:
        raise FileExistsError(
            f"{output} exists already; give another output, or " + parameter("overwrite", True) + " to replace it"
        )
    versions = output / VERSIONS
    if versions.is_dir() and not keeps_versions:
        kept = sorted(path.name for path in versions.iterdir())
        flags = " ".join(f"--prune {name}" for name in kept)
        raise FileExistsError(
            f"{output} keeps earlier versions ({', '.join(kept)}), which "
            + parameter("overwrite", True)
            + f" would remove; remove them first with `packhorse inspect {output} {flags}`, or give another "
            "output"
        )


def refuse_holding(output: Path, inputs: Iterable[Path]) -> None:
    """Refuses an output folder that is an input or the working directory, or contains one.

    Example:
        >>> try:
        ...     refuse_holding(Path("/data"), [Path("/data/corpus.parquet")])
        ... except FileExistsError as error:
        ...     print(error)
        output /data holds the input /data/corpus.parquet and would be replaced with it; give another output

    Args:
        output: the folder to be written; symbolic links are followed, here and in `inputs`.
        inputs: every file and folder that is read.

    Raises:
        FileExistsError: the output is, or contains, one of them or the working directory.
    """
    folder = output.resolve()
    for path, name in ((Path.cwd(), "the working directory"), *((path, f"the input {path}") for path in inputs)):
        needed = path.resolve()
        if folder == needed or folder in needed.parents:
            relation = "is" if folder == needed else "holds"
            raise FileExistsError(
                parameter("output") + f" {output} {relation} {name} and would be replaced with it; give another output"
            )


def _obstacle(output: Path) -> str:
    """Returns why a path is not a prepared dataset, or not only that; empty if it is one and holds nothing else."""
    if not output.is_dir():
        return "is not a folder"
    try:
        content = read_file(output / MANIFEST, MOST_MANIFEST_BYTES)
    except PreparedDatasetError:
        return f"has no {MANIFEST} of a dataset"
    fields = _fields_of(content)
    is_ours, is_seqpack = fields >= _OUR_FIELDS, fields >= _SEQPACK_FIELDS
    if not is_ours and not is_seqpack:
        return f"its {MANIFEST} is not a dataset's"
    for entry in sorted(os.scandir(output), key=lambda entry: entry.name):
        if entry.is_file(follow_symlinks=False):
            belongs = entry.name in (FILES if is_ours else _SEQPACK_FILES)
        elif is_ours and entry.name == VERSIONS:
            belongs = _holds_only_versions(entry)
        elif is_ours and entry.name == TOKENS:
            belongs = _holds_only_files(entry)
        else:
            belongs = is_seqpack and entry.name == SEQPACK_POOLS and _holds_only_pools(entry)
        if not belongs:
            return f"holds {entry.name!r}, which `packhorse prepare` does not write"
    return ""


def _fields_of(content: bytes) -> set[str]:
    """Returns the names of the fields of a JSON object; none if the bytes are anything else."""
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError):
        return set()
    return set(parsed) if isinstance(parsed, dict) else set()


def _holds_only_versions(folder: "os.DirEntry[str]") -> bool:
    """Returns whether a folder `versions` holds only folders 1, 2, …, and these only files of a prepared dataset."""
    return folder.is_dir(follow_symlinks=False) and all(
        _VERSION.fullmatch(entry.name) and _is_version(entry) for entry in os.scandir(folder)
    )


def _is_version(folder: "os.DirEntry[str]") -> bool:
    """Returns whether a folder holds only files of a prepared dataset, and perhaps its folder of token files."""
    return folder.is_dir(follow_symlinks=False) and all(
        _holds_only_files(entry)
        if entry.name == TOKENS
        else entry.is_file(follow_symlinks=False) and entry.name in FILES
        for entry in os.scandir(folder)
    )


def _holds_only_files(folder: "os.DirEntry[str]") -> bool:
    return folder.is_dir(follow_symlinks=False) and all(
        entry.is_file(follow_symlinks=False) for entry in os.scandir(folder)
    )


def _holds_only_pools(folder: "os.DirEntry[str]") -> bool:
    return folder.is_dir(follow_symlinks=False) and all(
        entry.is_file(follow_symlinks=False) and _SEQPACK_POOL.fullmatch(entry.name) for entry in os.scandir(folder)
    )
