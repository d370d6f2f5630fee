"""Object stores by URL: listing them, and reading ranges of one object, with deadlines and retries.

Owns what a URL is and how messages show it, asking a store, and the errors that this raises. Leaves when to retry to
`formats.retry_policy` and `formats.store_attempts`, and what a store's own exceptions mean to `formats.store_failures`.
fsspec, which knows the stores, is imported when a URL is opened.
"""

import glob
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, TypeGuard, TypeVar

from packhorse.formats.extras import require
from packhorse.formats.retry_policy import RetryPolicy, default_retry
from packhorse.formats.store_attempts import StoreAttempts
from packhorse.formats.store_failures import is_of_credentials, is_unreached
from packhorse.parameters import parameter

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_VERSIONS = ("ETag", "etag", "generation", "version_id", "md5Hash", "content_md5")
"""Names of the fields of a store's facts that change with an object's content, the most reliable first."""
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "created")
"""Names of the fields of a store's facts that say when an object was changed."""
_INSTALL = "pip install 'packhorse[stores]' for s3://, gcsfs for gs://, adlfs for az://, huggingface_hub for hf://"
_answered: set[str] = set()
"""Stores that have answered this process, as scheme and host: "s3://bucket"."""
_CHAINED = re.compile(r"::(?=[A-Za-z][\w+.-]*://)")
"""Separator of the URLs in one of fsspec's chains, such as simplecache::s3://bucket/x."""
_QUERY = re.compile(r"[?#]")
"""Beginning of a web URL's query or fragment."""
_NAMED_QUERY = re.compile(r"\?[\w.~%-]+=")
"""Beginning of another URL's query: a "?" before a name and "="; any other "?" may be part of a pattern."""
_URL = re.compile(r"[A-Za-z][\w+.-]*://[^\s'\"<>]+")
"""A URL within a text."""
_MOST_REQUESTS = 16
"""Most requests of `for_each` at a time; each mostly waits for the network."""
_LOOK_EVERY_SECONDS = 10.0
"""How often a store is asked for the version of an object that is being read."""
_NANOSECONDS = 10**9
"""Nanoseconds in a second."""


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
    """Returns whether `path` is a URL of an object, a folder or a pattern in a store; file:// URLs are not.

    Example:
        >>> is_url("s3://corpus/x.parquet"), is_url("x.parquet"), is_url("file:///data/x.parquet")
        (True, False, False)
    """
    return isinstance(path, str) and "://" in path and not path.startswith("file://")


def without_secrets(url: str) -> str:
    """Returns a URL without user, password and query, for messages and manifests: a query may hold a signature.

    A path stays as it is, and so does a "?" in a store's pattern.

    Example:
        >>> without_secrets("https://me:secret@host/corpus.idx?X-Amz-Signature=1f")
        'https://host/corpus.idx'
        >>> without_secrets("s3://corpus/part-?.parquet")
        's3://corpus/part-?.parquet'
    """
    return "::".join(map(_shown, _CHAINED.split(url))) if is_url(url) else url


def _shown(url: str) -> str:
    """Returns one URL of a chain without its secrets; see `without_secrets`."""
    scheme, mark, rest = url.partition("://")
    is_web = scheme in ("http", "https", "ftp", "sftp", "hdfs", "webhdfs")
    query = (_QUERY if is_web else _NAMED_QUERY).search(rest)
    host, slash, path = rest[: query.start() if query else None].partition("/")
    user, _, bare = host.rpartition("@")
    if is_web or ":" in user:  # without a password, what stands before "@" may be a container: abfs://container@account
        host = bare
    return f"{scheme}{mark}{host}{slash}{path}"


class _Opened(NamedTuple):
    """A store that a process has opened."""

    process: int
    """Id of the process."""
    file_system: Any
    """fsspec's file system of the store."""
    path: str
    """The URL's path in the file system."""


class Store:
    """The store of one URL. It pickles by URL; each process opens the store itself."""

    def __init__(self, url: str, options: StoreOptions | None = None) -> None:
        self.url = url
        self.options = options or StoreOptions()
        self._opened: _Opened | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def request(self, what: str, ask: Callable[[Any, str], _Result]) -> _Result:
        """Asks the store until it answers, or the deadline has passed.

        Args:
            what: the kind of answer, such as "size", for messages.
            ask: takes fsspec's file system and the path in it, and returns the answer.

        Raises:
            FileNotFoundError: there is no such object or bucket.
            ImportError: fsspec, or its file system for this kind of URL, is not installed.
            PermissionError: the store refuses, or has no credentials.
            TokenStoreError: no attempt before the deadline was answered, or `ask` raised one.
            ValueError: no store has such URLs.
        """
        shown = without_secrets(self.url)
        host = "/".join(self.url.split("/", 3)[:3])
        opened = self._open()
        attempts = StoreAttempts(self.options.retry, shown)
        while True:
            try:
                answer = attempts.within(self.options.attempt_seconds, lambda: ask(opened.file_system, opened.path))
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
                is_known = host in _answered or not is_unreached(error)
                if not attempts.wait_for_next(what, self._said(error), is_known=is_known):
                    raise TokenStoreError(
                        f"{shown}: no {what} in {attempts.failures} attempts over {attempts.elapsed_seconds:.0f} s; "
                        f"the last failed with {type(error).__name__}: {self._said(error)}. Check that the store is "
                        "up and reachable from here, or allow more time with "
                        + parameter("timeout_seconds")
                        + ", or StoreOptions(retry=RetryPolicy(…))"
                    ) from None
            else:
                _answered.add(host)
                return answer

    @property
    def path(self) -> str:
        """The path in the store's file system."""
        return self._open().path

    def look(self) -> dict[str, Any] | None:
        """Returns the store's facts about the URL; None if nothing is there."""
        try:
            return dict(self.request("answer", _facts))
        except FileNotFoundError:
            return None

    def _said(self, error: BaseException) -> str:
        """Returns the first line of an error's message, without the secrets of URLs."""
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        line = line.replace(self.url, without_secrets(self.url))
        return _URL.sub(lambda found: without_secrets(found[0]), line)[:200]

    def _open(self) -> _Opened:
        """Returns the store, which each process opens once.

        A forked process opens its own, because connections and threads do not survive a fork.
        """
        if self._opened is None or self._opened.process != os.getpid():
            require("fsspec", "stores")
            shown = without_secrets(self.url)
            try:
                file_system, path = require("fsspec.core", "stores").url_to_fs(self.url, **self.options.storage_options)
            except ImportError as error:
                raise ImportError(f"{shown}: {self._said(error)} ({_INSTALL})", name=error.name) from None
            except ValueError as error:
                raise ValueError(
                    f"{shown}: {self._said(error)}; install a file system for such URLs ({_INSTALL}), or give a path"
                ) from None
            self._opened = _Opened(os.getpid(), file_system, path)
        return self._opened


class StoredObject(Store):
    """One object at a URL, with the size and version that it had when this was made."""

    def __init__(self, url: str, options: StoreOptions | None = None) -> None:
        """Asks the store for the object's size and version.

        Raises:
            FileNotFoundError: there is no such object.
            ImportError, PermissionError, TokenStoreError, ValueError: see `Store.request`.
        """
        super().__init__(url, options)
        facts = self.request("size", _facts)
        if facts.get("type") == "directory" or facts.get("size") is None:
            raise FileNotFoundError(
                f"{without_secrets(url)} is a folder; give the URL of the token file or of its index"
            )
        self.size_bytes = int(facts["size"])
        self._facts = {name: facts.get(name) for name in ("size", *_VERSIONS, *_TIMES)}
        self._has_ranges = facts.get("partial") is not False  # fsspec's word for a web server's "Accept-Ranges: none"
        self.modified_ns = next((_nanoseconds(facts[name]) for name in _TIMES if facts.get(name) is not None), 0)
        self.version = next((str(facts[name]).strip('"') for name in _VERSIONS if facts.get(name) is not None), "")
        """The store's name of this version, such as an ETag; empty if it has none."""
        version = self.version or str(self.modified_ns)
        self._looked_at = time.monotonic()
        self.key = hashlib.sha256(f"{url}\n{self.size_bytes}\n{version}".encode()).hexdigest()[:32]
        """Identifies this object in this version."""

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
        if _is_replaced(self._facts, self.request("version", _facts)):
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


def find_objects(url: str, suffix: str) -> list[str]:
    """Finds the objects that one URL names, as `files.find_files` finds files.

    Args:
        url: an object, a folder of objects with the suffix (at any depth), or a glob pattern.
        suffix: suffix of the objects to take from a folder, with its dot.

    Returns:
        At least one URL; several are sorted as strings.

    Raises:
        FileNotFoundError: nothing is there.
        ImportError, PermissionError, TokenStoreError, ValueError: see `Store.request`.
    """
    store, shown = Store(url), without_secrets(url)
    facts = store.look()
    if facts is not None and facts.get("type") != "directory":
        return [url]
    if facts is not None:
        found = [
            path
            for path in store.request("list", lambda file_system, folder: file_system.find(folder))
            if path.endswith(suffix)
        ]
        if not found:
            raise FileNotFoundError(f"the folder {shown} and its subfolders hold no *{suffix} object")
        return _urls(url, store.options, found)
    if not glob.has_magic(url):
        raise FileNotFoundError(f"{shown} does not exist: the store has no object there, or below")
    matches = store.request("list", lambda file_system, pattern: file_system.glob(pattern, detail=True))
    files = [path for path, facts in matches.items() if facts.get("type") != "directory"]
    if not files:
        raise FileNotFoundError(f"no object matches {shown}")
    return _urls(url, store.options, files)


def for_each(items: Iterable[_Item], ask: Callable[[_Item], _Result]) -> list[_Result]:
    """Returns `ask(item)` for every item, in order; several calls run at a time, since each waits for a store."""
    all_items = list(items)
    if len(all_items) < 2:
        return [ask(item) for item in all_items]
    with ThreadPoolExecutor(_MOST_REQUESTS, thread_name_prefix="packhorse-stores") as threads:
        return list(threads.map(ask, all_items))


def _is_replaced(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Returns whether an object has another size, or all its known versions and times of change are others.

    One that stays the same is enough, because several web servers behind one address may give a file different ETags.
    """
    if before["size"] != now.get("size"):
        return True
    known = [name for name in (*_VERSIONS, *_TIMES) if before.get(name) is not None]
    return bool(known) and all(before[name] != now.get(name) for name in known)


def _facts(file_system: Any, path: str) -> Any:
    """Returns the store's facts about a path as they are now, not from a listing that fsspec has cached."""
    file_system.invalidate_cache()
    return file_system.info(path)


def _urls(url: str, options: StoreOptions, paths: Iterable[str]) -> list[str]:
    """Returns paths of a file system as sorted URLs; `url` is the folder, or the pattern, in which they were found."""
    # The root is the folder itself; for a pattern, it is the longest folder without "*", "?" and "[".
    plain = re.split(r"[*?\[]", url, maxsplit=1)[0]
    root = (url if plain == url else plain.rpartition("/")[0]).rstrip("/")
    base = Store(root, options).path.rstrip("/")
    return sorted(f"{root}/{path[len(base) :].lstrip('/')}" for path in paths)


def _nanoseconds(when: Any) -> int:
    """Returns a store's time (a text, seconds or a datetime) in nanoseconds since 1970; 0 for anything else."""
    if isinstance(when, str):
        try:
            when = datetime.fromisoformat(when)
        except ValueError:
            return 0
    if isinstance(when, datetime):
        return int(when.timestamp()) * _NANOSECONDS + when.microsecond * 1000
    return int(when * _NANOSECONDS) if isinstance(when, int | float) else 0
