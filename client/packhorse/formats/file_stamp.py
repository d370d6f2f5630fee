"""`FileStamp`: whether a file, or an object in a store, is still the one that was opened first."""

import os
from dataclasses import dataclass
from typing import Self

from packhorse.formats.object_store import StoredObject, is_url, without_secrets


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What identifies one state of a file: another size, time or version means that the file has changed."""

    size_bytes: int
    """Size of the file."""
    modified_ns: int
    """Time of its last change, in nanoseconds since 1970."""
    version: str = ""
    """The store's name of the version, such as an ETag; empty for files."""

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Self:
        """Returns the stamp of a file, or of the object at a URL, as it is now."""
        if is_url(path):
            found = StoredObject(path)
            return cls(found.size_bytes, found.modified_ns, found.version)
        status = os.stat(path)
        return cls(status.st_size, status.st_mtime_ns)

    def holds(self, path: str | os.PathLike[str]) -> bool:
        """Returns whether the file at the path still has this stamp; False if it is gone."""
        try:
            return FileStamp.of(path) == self
        except FileNotFoundError:
            return False

    def check(self, path: str | os.PathLike[str]) -> None:
        """Checks that the file at the path still has this stamp.

        Raises:
            FileNotFoundError: the file is gone.
            ValueError: it has been replaced or written to.
        """
        if FileStamp.of(path) != self:
            raise ValueError(
                f"{without_secrets(os.fspath(path))} has been replaced since it was first opened; open it again"
            )
