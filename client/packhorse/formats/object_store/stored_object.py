"""`StoredObject`: one object of a store, read in ranges, and refused once it is another version.

Owns what tells versions apart. Leaves asking the store, with deadlines and retries, to `store`.
"""

import hashlib
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from packhorse.formats.object_store.store import Store, StoreOptions, TokenStoreError, are_of_folder, facts_of
from packhorse.formats.object_store.urls import without_secrets

_VERSIONS = ("ETag", "etag", "generation", "version_id", "md5Hash", "content_md5")
"""Names of the fields of a store's facts that change with an object's content, the most reliable first."""
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "created")
"""Names of the fields of a store's facts that say when an object was changed."""
_LOOK_EVERY_SECONDS = 10.0
"""How often a store is asked for the version of an object that is being read."""
_NANOSECONDS = 10**9
"""Nanoseconds in a second."""


class StoredObject(Store):
    """One object at a URL, with the size and version that it had when this was made."""

    def __init__(self, url: str, options: StoreOptions | None = None) -> None:
        """Asks the store for the object's size and version.

        Raises:
            FileNotFoundError: there is no such object.
            ImportError, PermissionError, TokenStoreError, ValueError: see `Store.request`.
        """
        super().__init__(url, options)
        facts = self.request("size", facts_of)
        if are_of_folder(facts) or facts.get("size") is None:
            raise FileNotFoundError(
                f"{without_secrets(url)} is a folder; give the URL of the token file or of its index"
            )
        self.size_bytes = int(facts["size"])
        self._facts = {name: facts.get(name) for name in ("size", *_VERSIONS, *_TIMES)}  # what tells versions apart
        self._has_ranges = facts.get("partial") is not False  # fsspec's word for a web server's "Accept-Ranges: none"
        self.modified_ns = _nanoseconds(_first_known(facts, _TIMES, default=0))
        """When the object was changed, in nanoseconds since 1970; 0 if the store does not say."""
        self.version = str(_first_known(facts, _VERSIONS, default="")).strip('"')
        """The store's name of this version, such as an ETag; empty if it has none."""
        version_or_time = self.version or str(self.modified_ns)
        self.key = hashlib.sha256(f"{url}\n{self.size_bytes}\n{version_or_time}".encode()).hexdigest()[:32]
        """Identifies this object in this version."""
        self._looked_at = time.monotonic()  # when the store was last asked for the version

    def read(self, begin: int, end: int) -> bytes:
        """Returns bytes [begin, end).

        Raises:
            FileNotFoundError: the object is gone.
            PermissionError, TokenStoreError: see `Store.request`; or the store gives whole objects only, or the object
                was replaced since it was opened, which is noticed within ten seconds.
        """

        def ask(file_system: Any, path: str) -> bytes:
            """Reads the range; raises unless exactly its bytes came."""
            data: bytes = file_system.cat_file(path, start=begin, end=end)
            if len(data) == self.size_bytes > end - begin:  # the whole object came instead of a part
                raise self._gives_no_ranges()
            if len(data) != end - begin:  # an answer that was cut short: asked again
                raise EOFError(f"it gave {len(data):,} bytes")
            return data

        if begin >= end:
            return b""
        if not self._has_ranges and end - begin < self.size_bytes:
            raise self._gives_no_ranges()
        data = self.request(f"bytes {begin:,} to {end:,} of {self.size_bytes:,}", ask)
        self._refuse_another_version()
        return data

    def _refuse_another_version(self) -> None:
        """Raises a TokenStoreError if the object was replaced; asks only once in a while, since it is a request."""
        if time.monotonic() - self._looked_at < _LOOK_EVERY_SECONDS:
            return
        if _is_replaced(self._facts, self.request("version", facts_of)):
            raise TokenStoreError(
                f"{without_secrets(self.url)} was replaced while it was read; restart to read the new version, and "
                "prepare the dataset again if sequences changed their lengths. Name new data by a new URL"
            )
        self._looked_at = time.monotonic()

    def _gives_no_ranges(self) -> TokenStoreError:
        """Returns the error of a server that only gives whole objects."""
        return TokenStoreError(
            f"{without_secrets(self.url)}: the server ignores Range requests and gives all {self.size_bytes:,} bytes "
            "for any range; use another server or store, or copy the file to a disk and give its path"
        )


def _first_known(facts: Mapping[str, Any], names: Sequence[str], *, default: object) -> Any:
    """Returns the first of these facts that the store gives; `default` if it gives none."""
    return next((facts[name] for name in names if facts.get(name) is not None), default)


def _is_replaced(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Returns whether an object has another size, or all its known versions and times of change are others.

    One that stays the same is enough, because several web servers behind one address may give a file different ETags.
    """
    if before["size"] != now.get("size"):
        return True
    known = [name for name in (*_VERSIONS, *_TIMES) if before.get(name) is not None]
    return bool(known) and all(before[name] != now.get(name) for name in known)


def _nanoseconds(when: Any) -> int:
    """Returns a store's time (a text, seconds or a datetime) in nanoseconds since 1970; 0 for anything else."""
    if isinstance(when, str):
        try:
            when = datetime.fromisoformat(when)
        except ValueError:
            return 0
    if isinstance(when, datetime):  # seconds and microseconds apart, because a float would round their sum
        return int(when.timestamp()) * _NANOSECONDS + when.microsecond * 1000
    return int(when * _NANOSECONDS) if isinstance(when, int | float) else 0
