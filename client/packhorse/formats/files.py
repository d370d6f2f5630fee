"""Files by path or URL: which are there, in the order that numbers their rows.

If rows are numbered over several files, ids depend on that order, so preparing and training both find files here.
Owns opening them for reading too. Leaves whether a file has changed to `file_stamp`, mapping token files to `mapping`,
and asking stores to `formats.object_store`.
"""

import glob
import io
import os
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import unquote, urlsplit

from packhorse.formats.object_store import Store, StoredObject, find_objects, is_url, without_secrets
from packhorse.formats.range_file import RangeFile
from packhorse.storage import check_plain, open_plain

_BUFFER_BYTES = 1 << 20
"""Least size of a request to a store when an object is read from beginning to end."""


def named_files(source: str, suffix: str) -> list[str]:
    """Returns the files that one path names, or the objects that one URL names; see `find_files`."""
    return find_objects(source, suffix) if is_url(source) else [str(path) for path in find_files(source, suffix)]


def is_file(path: str) -> bool:
    """Returns whether a file is at a path, or an object at a URL."""
    if is_url(path):
        return Store(path).has_object()
    return os.path.isfile(path)


def is_folder(path: str) -> bool:
    """Returns whether a folder is at a path, or objects are below a URL."""
    if is_url(path):
        return Store(path).has_folder()
    return os.path.isdir(path)


def exists(path: str) -> bool:
    """Returns whether anything is at a path or URL."""
    return Store(path).look() is not None if is_url(path) else os.path.exists(path)


def open_binary(path: str) -> BinaryIO:
    """Opens a file, or the object at a URL, for reading.

    Raises:
        FileNotFoundError: it is missing.
        ImportError, PermissionError, ValueError: see `object_store.Store.request`.
        OSError: it cannot be read, or is not a plain file.
    """
    if is_url(path):
        return cast(BinaryIO, io.BufferedReader(object_file(path), _BUFFER_BYTES))
    return open_plain(path)


def object_file(url: str) -> RangeFile:
    """Opens an object as a file. Each read is a request: for small reads, wrap it in `io.BufferedReader`."""
    found = StoredObject(url)
    return RangeFile(found.read, found.size_bytes)


def absolute(path: str) -> str:
    """Returns a path as an absolute one, and a URL without its secrets."""
    return without_secrets(path) if is_url(path) else os.path.abspath(path)


def as_path(source: str | os.PathLike[str]) -> str:
    """Returns a path or a store's URL as text; a file:// URL becomes a path.

    Example:
        >>> as_path("file:///data/my%20corpus.idx"), as_path("s3://corpus/x.idx")
        ('/data/my corpus.idx', 's3://corpus/x.idx')
    """
    name = os.fspath(source)
    return unquote(urlsplit(name).path) if name.startswith("file://") else name


def find_files(source: str | os.PathLike[str], suffix: str) -> list[Path]:
    """Returns the files that one path names.

    Args:
        source: a file, a folder of files with the suffix (at any depth), or a glob pattern.
        suffix: suffix of the files to take from a folder, with its dot.

    Returns:
        At least one path; several are sorted as strings.

    Raises:
        FileNotFoundError: nothing is there, or a link in the folder leads nowhere.
        OSError: the path is neither a folder nor a plain file.
    """
    path = Path(source)
    if path.is_dir():
        return _files_of_folder(source, suffix)
    if path.exists():  # also if its name looks like a pattern
        check_plain(path)
        return [path]
    pattern = os.fspath(source)
    if not glob.has_magic(pattern):
        raise FileNotFoundError(f"{pattern} does not exist")
    names = sorted(name for name in glob.glob(pattern, recursive=True) if os.path.isfile(name))
    if not names:
        raise FileNotFoundError(f"no file matches {pattern}")
    return [Path(name) for name in names]


def _files_of_folder(folder: str | os.PathLike[str], suffix: str) -> list[Path]:
    """Returns a folder's files with the suffix, at any depth; see `find_files`."""
    entries = list(Path(folder).rglob(f"*{suffix}"))
    for entry in entries:
        if entry.is_symlink() and not entry.exists():
            raise FileNotFoundError(f"{entry} is a link to a missing file; repair or remove it")
    names = sorted(str(entry) for entry in entries if entry.is_file())  # not as paths, whose parts are compared
    if not names:
        raise FileNotFoundError(f"the folder {os.fspath(folder)} and its subfolders hold no *{suffix} file")
    return [Path(name) for name in names]
