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
    """Finds the files that one path names, or the objects that one URL names; see `find_files`."""
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
    """Finds the files that one path names.

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
    name = os.fspath(source)
    if path.is_dir():
        entries = list(path.rglob(f"*{suffix}"))
        for entry in entries:
            if entry.is_symlink() and not entry.exists():
                raise FileNotFoundError(f"{entry} is a link to a missing file; repair or remove it")
        names = sorted(str(entry) for entry in entries if entry.is_file())
        if not names:
            raise FileNotFoundError(f"the folder {name} and its subfolders hold no *{suffix} file")
    elif path.exists():
        check_plain(path)
        names = [name]
    elif glob.has_magic(name):
        names = sorted(found for found in glob.glob(name, recursive=True) if os.path.isfile(found))
        if not names:
            raise FileNotFoundError(f"no file matches {name}")
    else:
        raise FileNotFoundError(f"{name} does not exist")
    return [Path(found) for found in names]
