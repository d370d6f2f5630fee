"""The mixtures' files below a catalog's root, as they are on the disk now: `MixtureFiles`.

Owns which name has a file, and what is known of it if the disk hangs. Leaves reading the files to `mixtures`.
"""

import logging
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from packhorse.dataset import MIXTURE_SUFFIX
from packhorse.server.datasets._folders import has_manifest
from packhorse.storage import Stamp, look_at, stamp_of

_LOG = logging.getLogger(__name__)


class FoundFile(NamedTuple):
    """A mixture's file."""

    path: Path
    """Where it is."""
    stamp: Stamp
    """By which another content is recognised."""


class MixtureFiles:
    """Every `NAME.mixture.toml` below a root, right or wrong, unless a dataset has that name.

    Args:
        root: the catalog's root.
        known: names of mixtures that have been read, a live view; if the disk does not answer, they count as there.
    """

    def __init__(self, root: Path, *, known: Collection[str]) -> None:
        self._root = root
        self._known = known
        self._hidden: set[str] = set()  # mixtures whose name a dataset has, as the log has said

    def names(self) -> list[str]:
        """Returns the names of all mixtures that have a file."""
        try:
            return look_at(f"{self._root}/*{MIXTURE_SUFFIX}", lambda: list(self._find_names()))
        except TimeoutError:
            return sorted(self._known)

    def has(self, name: str) -> bool:
        """Returns whether a mixture has a file."""
        try:
            return self.look_at(name) is not None
        except TimeoutError:
            return name in self._known

    def stamp(self, name: str) -> Stamp | None:
        """Returns the stamp of a mixture's file; None if it has none, or the disk does not answer."""
        try:
            found = self.look_at(name)
        except TimeoutError:
            return None
        return None if found is None else found.stamp

    def look_at(self, name: str) -> FoundFile | None:
        """Returns a mixture's file; None if it has none. Raises a TimeoutError if the disk does not answer."""

        def look() -> FoundFile | None:
            path = self.path_of(name)
            stamp = None if path is None else stamp_of(path)
            return None if path is None or stamp is None else FoundFile(path, stamp)

        return look_at(f"{self._root}/{name}{MIXTURE_SUFFIX}", look)

    def path_of(self, name: str) -> Path | None:
        """Returns the path of a mixture's file; None if it has none. Waits as long as the disk does."""
        if not name or name.startswith(".") or Path(name).name != name or "\0" in name:
            return None
        path = self._root / f"{name}{MIXTURE_SUFFIX}"
        try:
            return path if path.is_file() and not has_manifest(self._root / name) else None
        except OSError:  # the name is too long for a file, or the file may not be looked at
            return None

    def _find_names(self) -> Iterator[str]:
        """Yields the name of each mixture's file; logs once a file whose name a dataset has."""
        if not has_manifest(self._root):  # else the root is a dataset itself, and has no mixtures
            for path in sorted(self._root.glob(f"*{MIXTURE_SUFFIX}")):
                name = path.name.removesuffix(MIXTURE_SUFFIX)
                if self.path_of(name) is not None:
                    yield name
                elif name not in self._hidden and has_manifest(path.parent / name):
                    self._hidden.add(name)
                    _LOG.error("mixture %s: a dataset has that name and is served instead; rename one of them", name)
