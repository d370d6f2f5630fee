"""Object stores by URL: listing them, and reading ranges of one object, with deadlines and retries.

Owns what may go wrong between a store and us, and never returns bytes of another object. Leaves when to retry to
`formats.retry_policy`. fsspec, which knows the stores, is imported when a URL is opened.
"""

import glob
import hashlib
import io
import os
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeGuard, TypeVar

from packhorse.formats.extras import require
from packhorse.formats.retry_policy import RetryPolicy, default_retry
from packhorse.formats.store_attempts import StoreAttempts
from packhorse.formats.store_failures import is_of_credentials, is_unreached
from packhorse.parameters import parameter

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_VERSIONS = ("ETag", "etag", "generation", "version_id", "md5Hash", "content_md5")
"""Names of fields that change with an object's content, the most telling first."""
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "created")
_INSTALL = "pip install 'packhorse[stores]' for s3://, gcsfs for gs://, adlfs for az://, huggingface_hub for hf://"
_ANSWERED: set[str] = set()
"""Stores that have answered this process: scheme and host."""
_CHAINED = re.compile(r"::(?=[A-Za-z][\w+.-]*://)")
"""Between the URLs of fsspec's chains, such as simplecache::s3://bucket/x."""
_QUERY = re.compile(r"[?#]")
_NAMED_QUERY = re.compile(r"\?[\w.~%-]+=")
"""A query where "?" may also be part of a pattern: it begins with a name and "="."""
_URL = re.compile(r"[A-Za-z][\w+.-]*://[^\s'\"<>]+")
"""Within a text."""
_WAYS_TO_ASK = 16
"""Requests at a time; each waits for the network."""


class TokenStoreError(OSError):
    """An object store did not answer, even after retries; the message names the URL and the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """How a store is reached.

    Example:
        >>> StoreOptions(attempt_seconds=10).retry.deadline_seconds
        120.0
    """

    storage_options: Mapping[str, Any] = field(default_factory=dict)
    """Options for fsspec's file system of the store: an endpoint, a profile, `anon=True`."""
    attempt_seconds: float = 30.0
    """How long one request may take."""
    retry: RetryPolicy = field(default_factory=default_retry)
    """How long a request is retried. By default for PACKHORSE_TIMEOUT_SECONDS; without it for 120 s, or for 10 s if the
    address has never answered.
    """


def is_url(path: object) -> TypeGuard[str]:
    """Whether something is the URL of an object, a folder or a pattern in a store; file:// is not.

    Example:
        >>> is_url("s3://corpus/x.parquet"), is_url("x.parquet"), is_url("file:///data/x.parquet")
        (True, False, False)
    """
    return isinstance(path, str) and "://" in path and not path.startswith("file://")


def without_secrets(url: str) -> str:
    """Returns a URL without user, password and query, which may hold signatures: for messages and manifests.

    A path stays as it is, and so does a "?" in a store's pattern.

    Example:
        >>> without_secrets("https://me:secret@host/corpus.idx?X-Amz-Signature=1f")
        'https://host/corpus.idx'
        >>> without_secrets("s3://corpus/part-?.parquet")
        's3://corpus/part-?.parquet'
    """
    return "::".join(map(_shown, _CHAINED.split(url))) if is_url(url) else url


def _shown(url: str) -> str:
    """One URL of a chain as `without_secrets` shows it."""
    scheme, mark, rest = url.partition("://")
    is_web = scheme in ("http", "https", "ftp", "sftp", "hdfs", "webhdfs")
    query = (_QUERY if is_web else _NAMED_QUERY).search(rest)
    host, slash, path = rest[: query.start() if query else None].partition("/")
    user, _, bare = host.rpartition("@")
    if is_web or ":" in user:  # elsewhere it may be a container's name
        host = bare
    return f"{scheme}{mark}{host}{slash}{path}"


class Store:
    """The store of one URL. It pickles by URL; each process opens the store itself."""

    def __init__(self, url: str, options: StoreOptions | None = None) -> None:
        self.url = url
        self.options = options or StoreOptions()
        self._opened: tuple[int, Any, str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def request(self, what: str, ask: Callable[[Any, str], _Result]) -> _Result:
        """Asks until there is an answer, or the deadline has passed.

        Args:
            what: the kind of answer, for messages.
            ask: takes the file system and the path in it.

        Raises:
            FileNotFoundError: there is no such object or bucket.
            ImportError: fsspec, or its file system for this kind of URL, is not installed.
            PermissionError: the store refuses, or has no credentials.
            TokenStoreError: no attempt before the deadline was answered, or `ask` raised one.
            ValueError: no store has such URLs.
        """
        shown = without_secrets(self.url)
        host = "/".join(self.url.split("/", 3)[:3])
        store, path = self._open()
        attempts = StoreAttempts(self.options.retry, shown)
        while True:
            try:
                answer = attempts.within(self.options.attempt_seconds, lambda: ask(store, path))
            except TokenStoreError:  # asking again would not help
                raise
            except (FileNotFoundError, PermissionError) as error:
                raise type(error)(
                    f"{shown}: {self._said(error)}; correct the URL, or the rights that the store gives"
                ) from None
            except Exception as error:  # each store has exceptions of its own
                if is_of_credentials(error):
                    raise PermissionError(
                        f"{shown}: {self._said(error)}; give the store's credentials as its own tools take them, such "
                        "as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE for s3://"
                    ) from None
                is_known = host in _ANSWERED or not is_unreached(error)
                if not attempts.wait(what, self._said(error), is_known=is_known):
                    raise TokenStoreError(
                        f"{shown}: no {what} in {attempts.failures} attempts over {attempts.elapsed_seconds:.0f} s; "
                        f"the last failed with {type(error).__name__}: {self._said(error)}. Check that the store is "
                        "up and reachable from here, or allow more time with "
                        + parameter("timeout_seconds")
                        + ", or StoreOptions(retry=RetryPolicy(…))"
                    ) from None
            else:
                _ANSWERED.add(host)
                return answer

    @property
    def path(self) -> str:
        """The path in the store's file system."""
        return self._open()[1]

    def look(self) -> dict[str, Any] | None:
        """Returns the store's facts about the URL; None if nothing is there."""
        try:
            return dict(self.request("answer", _info))
        except FileNotFoundError:
            return None

    def _said(self, error: BaseException) -> str:
        """The first line of an error, without secrets of URLs."""
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        line = line.replace(self.url, without_secrets(self.url))
        return _URL.sub(lambda found: without_secrets(found[0]), line)[:200]

    def _open(self) -> tuple[Any, str]:
        """The file system, opened by this process, and the object's path in it."""
        if self._opened is None or self._opened[0] != os.getpid():
            require("fsspec", "stores")
            shown = without_secrets(self.url)
            try:
                store, path = require("fsspec.core", "stores").url_to_fs(self.url, **self.options.storage_options)
            except ImportError as error:
                raise ImportError(f"{shown}: {self._said(error)} ({_INSTALL})", name=error.name) from None
            except ValueError as error:
                raise ValueError(
                    f"{shown}: {self._said(error)}; install a file system for such URLs ({_INSTALL}), or give a path"
                ) from None
            self._opened = os.getpid(), store, path
        return self._opened[1], self._opened[2]


class StoredObject(Store):
    """An object at a URL, in its version of now."""

    def __init__(self, url: str, options: StoreOptions | None = None) -> None:
        """Asks the store for the object's size and version.

        Raises:
            FileNotFoundError: there is no such object.
            ImportError, PermissionError, TokenStoreError, ValueError: see `Store.request`.
        """
        super().__init__(url, options)
        info = self.request("size", _info)
        if info.get("type") == "directory" or info.get("size") is None:
            raise FileNotFoundError(
                f"{without_secrets(url)} is a folder; give the URL of the token file or of its index"
            )
        self.size_bytes = int(info["size"])
        self._has_ranges = info.get("partial") is not False  # fsspec's word for a web server's "Accept-Ranges: none"
        self.modified_ns = next((_nanoseconds(info[name]) for name in _TIMES if info.get(name) is not None), 0)
        self.version = next((str(info[name]).strip('"') for name in _VERSIONS if info.get(name) is not None), "")
        """The store's name of this version, such as an ETag; empty if it has none."""
        version = self.version or str(self.modified_ns)
        self.key = hashlib.sha256(f"{url}\n{self.size_bytes}\n{version}".encode()).hexdigest()[:32]
        """Identifies this object in this version."""

    def read(self, begin: int, end: int) -> bytes:
        """Returns bytes [begin, end).

        Raises:
            FileNotFoundError: the object is gone.
            PermissionError, TokenStoreError: see `Store.request`; or the store gives whole objects only.
        """

        def all_of(store: Any, path: str) -> bytes:
            data: bytes = store.cat_file(path, start=begin, end=end)
            if len(data) == self.size_bytes > end - begin:
                raise self._gives_no_ranges()
            if len(data) != end - begin:
                raise EOFError(f"it gave {len(data):,} bytes")
            return data

        if begin >= end:
            return b""
        if not self._has_ranges and end - begin < self.size_bytes:
            raise self._gives_no_ranges()
        return self.request(f"bytes {begin:,} to {end:,} of {self.size_bytes:,}", all_of)

    def _gives_no_ranges(self) -> TokenStoreError:
        return TokenStoreError(
            f"{without_secrets(self.url)}: the server ignores Range requests and gives all {self.size_bytes:,} bytes "
            "for any range; use another server or store, or copy the file to a disk and give its path"
        )


class RangeFile(io.RawIOBase):
    """A file of `size_bytes`, made of a function that returns bytes [begin, end)."""

    def __init__(self, read_range: Callable[[int, int], bytes | memoryview], size_bytes: int) -> None:
        self._read_range = read_range
        self._size_bytes = size_bytes
        self._at = 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """Returns the offset of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves to an offset, as files do."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size_bytes}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Reads as much as fits and is there."""
        view = memoryview(buffer).cast("B")
        end = min(self._at + len(view), self._size_bytes)
        size = max(0, end - self._at)
        if size:
            view[:size] = self._read_range(self._at, end)
            self._at = end
        return size


def object_file(url: str) -> RangeFile:
    """Opens an object as a file. Each read is a request: for small reads, wrap it in `io.BufferedReader`."""
    found = StoredObject(url)
    return RangeFile(found.read, found.size_bytes)


def find_objects(url: str, suffix: str) -> list[str]:
    """Finds the objects that one URL names, as `files.find_files` finds files.

    Args:
        url: an object, a folder of objects with the suffix (at any depth), or a glob pattern.
        suffix: of the objects to take from a folder, with its dot.

    Returns:
        At least one URL; several are sorted as strings.

    Raises:
        FileNotFoundError: nothing is there.
        ImportError, PermissionError, TokenStoreError, ValueError: see `Store.request`.
    """
    store, shown = Store(url), without_secrets(url)
    info = store.look()
    if info is not None and info.get("type") != "directory":
        return [url]
    if info is not None:
        found = [path for path in store.request("list", lambda fs, path: fs.find(path)) if path.endswith(suffix)]
        if not found:
            raise FileNotFoundError(f"the folder {shown} and its subfolders hold no *{suffix} object")
        return _urls(url, store.options, found)
    if not glob.has_magic(url):
        raise FileNotFoundError(f"{shown} does not exist: the store has no object there, or below")
    matches = store.request("list", lambda fs, path: fs.glob(path, detail=True))
    files = [path for path, about in matches.items() if about.get("type") != "directory"]
    if not files:
        raise FileNotFoundError(f"no object matches {shown}")
    return _urls(url, store.options, files)


def for_each(items: Iterable[_Item], ask: Callable[[_Item], _Result]) -> list[_Result]:
    """Returns `ask` of each item, several at a time: for functions that wait for a store."""
    some = list(items)
    if len(some) < 2:
        return [ask(item) for item in some]
    with ThreadPoolExecutor(_WAYS_TO_ASK, thread_name_prefix="packhorse-stores") as threads:
        return list(threads.map(ask, some))


def _info(store: Any, path: str) -> Any:
    """The store's facts about a path now; file systems of fsspec keep older listings."""
    store.invalidate_cache()
    return store.info(path)


def _urls(url: str, options: StoreOptions, paths: Iterable[str]) -> list[str]:
    """Paths of a file system as URLs, sorted; `url` is a folder or a pattern above them."""
    magic = next((at for at, character in enumerate(url) if character in "*?["), len(url))
    root = (url if magic == len(url) else url[:magic].rpartition("/")[0]).rstrip("/")
    base = Store(root, options).path.rstrip("/")
    return sorted(f"{root}/{path[len(base) :].lstrip('/')}" for path in paths)


def _nanoseconds(when: Any) -> int:
    """A store's time, a text, a number of seconds or a datetime; 0 for anything else."""
    if isinstance(when, str):
        try:
            when = datetime.fromisoformat(when)
        except ValueError:
            return 0
    if isinstance(when, datetime):
        return int(when.timestamp()) * 10**9 + when.microsecond * 1000
    return int(when * 10**9) if isinstance(when, int | float) else 0
