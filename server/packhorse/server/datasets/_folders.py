"""The folders below a data root that are, or should be, prepared datasets.

Owns finding them, even if a file system does not answer. Leaves opening and refusing them to `catalog`.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from packhorse.dataset import MANIFEST, left_aside
from packhorse.server.datasets.stamps import Stamps, stamps_of
from packhorse.storage import look_at

_LOST_AND_FOUND = "lost+found"
"""A folder at the top of many volumes, which only its owner may read."""


class FoundFolders(NamedTuple):
    """The folders below a root, found without opening any."""

    stamps: dict[Path, Stamps]
    """Every folder that is, or should be, a dataset → the stamps of its files."""
    hanging: dict[Path, TimeoutError]
    """Every entry of the root whose file system does not answer → the error that says so."""


def find_folders(root: Path, is_open: Callable[[str], bool]) -> FoundFolders:
    """Finds the folders below a root.

    Args:
        root: a folder of prepared folders, or one prepared folder.
        is_open: whether a dataset of that name is open. If it is, an old folder that lies aside does not count: the
            dataset may be being replaced just now.

    Raises:
        OSError: the root cannot be read.
    """
    try:
        return FoundFolders(look_at(f"{root}/*", lambda: dict(_with_stamps(_entries(root), is_open))), {})
    except TimeoutError:  # some file system hangs: each entry is asked by itself, which takes longer
        found = FoundFolders({}, {})
        for entry in look_at(str(root), lambda: _entries(root)):
            try:
                found.stamps.update(look_at(str(entry), partial(dict, _with_stamps([entry], is_open))))
            except TimeoutError as error:
                found.hanging[entry] = error
        return found


def has_folders(root: Path, is_open: Callable[[str], bool]) -> bool:
    """Whether there are folders for `find_folders` to find. Waits as long as the disk does."""
    return any(_folders_among(_entries(root), is_open))


def has_manifest(folder: Path) -> bool:
    """Whether a folder is a prepared one. True also if it may not be read: opening it then gives the reason."""
    try:
        return (folder / MANIFEST).exists()
    except PermissionError:
        return True


def _entries(root: Path) -> list[Path]:
    """Returns the files and folders in the root, or the root itself if it is a prepared folder."""
    return [root] if has_manifest(root) else sorted(root.iterdir())


def _with_stamps(entries: Iterable[Path], is_open: Callable[[str], bool]) -> Iterator[tuple[Path, Stamps]]:
    for folder in _folders_among(entries, is_open):
        yield folder, stamps_of(folder)


def _folders_among(entries: Iterable[Path], is_open: Callable[[str], bool]) -> Iterator[Path]:
    """Yields the entries of a root that are, or should be, a dataset."""
    for folder in entries:
        if not folder.name.startswith(".") and folder.name != _LOST_AND_FOUND and has_manifest(folder):
            yield folder
        elif (crashed := left_aside(folder)) and not is_open(crashed.name) and has_manifest(folder):
            # A crash left only the folder moved aside. Nothing is at the proper path, which is yielded: opening fails,
            # and the error says what to do.
            yield crashed
