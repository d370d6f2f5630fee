"""Finding the files that inputs name, and the kind of each by its suffix.

Owns paths, folders, patterns and suffixes. Reading a file is in `ranges`.
"""

import glob as globbing
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from packhorse.formats.arrow.folders import SAVED_SPLITS, SAVED_STATE, arrow_files, arrow_objects
from packhorse.formats.files import as_path, exists, is_folder, named_files
from packhorse.formats.object_store import is_url, without_secrets
from packhorse.parameters import parameter

Kind = Literal["text", "text of a folder", "JSON lines", "JSON", "Parquet", "Arrow"]
"""The kind of a file, by its name. A "text of a folder" is a text file that was found in a folder."""

TEXT_KINDS: tuple[Kind, ...] = ("text", "text of a folder")
"""The kinds of files without rows."""

Compression = Literal["gzip", "zstd"]
"""How a file is compressed, as pyarrow names it."""

ROW_KINDS: dict[str, Kind] = {
    ".jsonl": "JSON lines",
    ".ndjson": "JSON lines",
    ".json": "JSON",
    ".parquet": "Parquet",
    ".pq": "Parquet",
    ".arrow": "Arrow",
    ".ipc": "Arrow",
    ".feather": "Arrow",
}
"""Suffix → kind, of files with rows."""

_COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
"""Last suffix → compression, of files that are decompressed."""

_UNREAD = {
    **dict.fromkeys((".csv", ".tsv"), "a table that is not read; convert it to Parquet or JSON lines"),
    **dict.fromkeys((".tar", ".tgz", ".zip", ".7z"), "an archive; unpack it"),
    **dict.fromkeys((".xz", ".bz2", ".lz4"), "packed in a way that is not read; unpack it, or use gzip or zstd"),
}
"""Suffix of a file that is not read → what it is, and what to do with it."""

_TEXT_IF_ASKED = (".json", ".csv", ".tsv")
"""Suffixes of files that are read as text if the user asks for it."""

_DOCUMENTATION = ("readme", "license", "licence", "notice", "citation", "changelog", "_success")
"""Names, without suffix, of documentation that may be beside files of rows."""

_METADATA = (SAVED_STATE, SAVED_SPLITS, "dataset_info.json", "dataset_infos.json")
"""Names of files with metadata, which Hugging Face `datasets` writes beside rows."""

_MOST_NAMED = 3
"""Files that an error message names."""


class InputFile(NamedTuple):
    """A file that inputs name."""

    path: str
    """Path of the file, or URL of the object."""
    kind: Kind


@dataclass(frozen=True, slots=True)
class Found:
    """The files that inputs name."""

    files: Sequence[InputFile]
    """Each file, in the order of the inputs."""
    left_out: Sequence[str] = ()
    """Files of documentation and metadata beside rows, which are not read."""

    @property
    def num_files(self) -> Mapping[str, int]:
        """Kind → number of its files; text files found in folders count as "text"."""
        return dict(Counter("text" if file.kind in TEXT_KINDS else file.kind for file in self.files))


def listed(inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str | os.PathLike[str]]:
    """Returns one input, or several, as a list; a ValueError if one of them is no path."""
    found = [inputs] if isinstance(inputs, str | os.PathLike) or not isinstance(inputs, Sequence) else list(inputs)
    if not all(isinstance(entry, str | os.PathLike) for entry in found):
        raise ValueError(parameter("inputs") + f" must be paths or glob patterns, got {inputs!r:.60}")
    return found


def find_inputs(inputs: Sequence[str | os.PathLike[str]], *, glob: str | None = None, as_text: bool = False) -> Found:
    """Returns the files that inputs name, each with its kind.

    A folder with rows gives its files of rows, each read by its kind. A folder of text gives all its files as text.

    Args:
        inputs: files, folders and glob patterns, or their URLs.
        glob: pattern of the files to take from a folder; None for all.
        as_text: whether .json, .csv and .tsv files are read as text, as in a folder of source code.

    Raises:
        FileNotFoundError: an input does not exist, or a pattern matches no file.
        ValueError: a file is of a kind that is not read, or a folder holds both rows and text.
    """
    files: list[InputFile] = []
    left_out: list[str] = []
    for path in expand_inputs(inputs):
        if is_folder(path):
            in_folder = _files_in(path, glob, as_text)
            files += in_folder.files
            left_out += in_folder.left_out
        else:
            files.append(InputFile(path, _kind_of(path, as_text)))
    return Found(files, left_out=left_out)


def expand_inputs(inputs: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Returns the files and folders that paths, URLs and glob patterns name, a pattern's in sorted order.

    Raises:
        FileNotFoundError: a path is not there, or nothing matches a pattern.
        ValueError: no input is given.
    """
    if not inputs:
        raise ValueError("no input is given; name a file, a folder, a glob pattern or the URL of one")
    found: list[str] = []
    for path in map(as_path, inputs):
        if exists(path):  # first, because a name may have brackets, which a pattern has too
            found.append(path)
        elif is_url(path):
            found.extend(named_files(path, suffix=""))
        else:
            matches = sorted(globbing.glob(path, recursive=True))
            if not matches:
                raise FileNotFoundError(
                    parameter("input") + f" {without_secrets(path)} does not exist, and matches no file as a pattern"
                )
            found.extend(matches)
    return found


def compression_of(path: str) -> Compression | None:
    """Returns how a file is compressed, by its name; None if it is not."""
    return _COMPRESSIONS.get(os.path.splitext(without_secrets(path))[1].lower())


def _suffix(path: str) -> str:
    """Returns a file's suffix, without that of its compression."""
    root, suffix = os.path.splitext(without_secrets(path).lower())
    return os.path.splitext(root)[1] if suffix in _COMPRESSIONS else suffix


def _kind_of(path: str, as_text: bool) -> Kind:
    """Returns the kind of a file, by its name; a ValueError if such files are not read."""
    suffix = _suffix(path)
    if as_text and suffix in _TEXT_IF_ASKED:
        return "text"
    if suffix in _UNREAD:
        message = f"{without_secrets(path)} is {_UNREAD[suffix]}"
        if suffix in _TEXT_IF_ASKED:
            message += ", or give " + parameter("documents", "line") + " to read it as plain text"
        raise ValueError(message)
    kind = ROW_KINDS.get(suffix, "text")
    if kind in ("Parquet", "Arrow") and compression_of(path) is not None:
        raise ValueError(f"{without_secrets(path)} is {kind} that is compressed as a whole; unpack it")
    return kind


def _files_in(folder: str, glob: str | None, as_text: bool) -> Found:
    """Returns the files of a folder, all of them rows or all of them text."""
    shown_folder = without_secrets(folder)
    paths = _visible_files(folder, glob or "*")
    if not paths:
        raise FileNotFoundError(
            f"the folder {shown_folder} holds no file"
            + ("" if glob is None else " that matches " + parameter("glob", glob))
            + "; names that begin with a dot are left out"
        )
    states = [path for path in paths if os.path.basename(path) in (SAVED_SPLITS, SAVED_STATE)]
    if states and any(_suffix(path) == ".arrow" for path in paths):
        return _saved_dataset(folder, paths, states[0])
    # A table that is not read (.csv) is among the files of rows too, so that it is refused and not taken for text.
    row_suffixes = {*ROW_KINDS, ".csv", ".tsv"} - set(_TEXT_IF_ASKED if as_text else ())
    row_paths = [path for path in paths if _suffix(path) in row_suffixes and not _is_metadata(path)]
    if not row_paths:
        return Found([InputFile(path, "text of a folder") for path in paths])
    row_path_set = set(row_paths)
    other_paths = [path for path in paths if path not in row_path_set]
    text_paths = [path for path in other_paths if not _is_metadata(path)]
    if text_paths:
        first_texts = ", ".join(os.path.basename(path) for path in text_paths[:_MOST_NAMED])
        can_be_text = all(_suffix(path) in _TEXT_IF_ASKED for path in row_paths)
        raise ValueError(
            f"the folder {shown_folder} holds rows ({os.path.basename(row_paths[0])}) and other files ({first_texts}): "
            "name which are meant, as with "
            + parameter("glob", f"*{_suffix(row_paths[0])}*")
            + ", or name both as inputs of their own"
            + ((", or give " + parameter("documents", "file") + " to read all as text") if can_be_text else "")
        )
    return Found([InputFile(path, _kind_of(path, as_text)) for path in row_paths], left_out=other_paths)


def _saved_dataset(folder: str, paths: Sequence[str], state: str) -> Found:
    """Returns the Arrow files of a folder to which Hugging Face `datasets` saved one dataset.

    `paths` are all files of the folder, and `state` is the file of metadata by which the folder was recognized.
    """
    if os.path.dirname(state) != folder.rstrip("/") or os.path.basename(state) == SAVED_SPLITS:
        raise ValueError(
            f"the folder {without_secrets(folder)} holds saved datasets; give the folder of one, such as train"
        )
    arrow_paths = arrow_objects(folder) if is_url(folder) else list(map(str, arrow_files(folder)))
    arrow_path_set = set(arrow_paths)
    left_out = [path for path in paths if path not in arrow_path_set]
    return Found([InputFile(path, "Arrow") for path in arrow_paths], left_out=left_out)


def _is_metadata(path: str) -> bool:
    """Whether a file is documentation or metadata, by its name, which may be beside files of rows."""
    name = os.path.basename(without_secrets(path)).lower()
    return name in _METADATA or os.path.splitext(name)[0] in _DOCUMENTATION


def _visible_files(folder: str, pattern: str) -> list[str]:
    """Returns the files of a folder that match a pattern, sorted, without hidden ones."""
    pattern_below = pattern if "/" in pattern else f"**/{pattern}"  # without a slash it matches at every depth
    if is_url(folder):
        try:
            paths = named_files(f"{folder.rstrip('/')}/{pattern_below}", suffix="")
        except FileNotFoundError:
            return []
    else:
        paths = [str(path) for path in Path(folder).glob(pattern_below) if path.is_file()]
    names_and_paths = sorted((_names_below(folder, path), path) for path in paths)
    return [path for names, path in names_and_paths if not any(name.startswith(".") for name in names)]


def _names_below(folder: str, path: str) -> list[str]:
    """Returns the names that lead from a folder to a file in it, as ["src", "main.py"]."""
    return path[len(folder) :].strip("/").split("/") if is_url(folder) else list(Path(path).relative_to(folder).parts)
