"""One object of an object store, read in ranges: with deadlines, again after failures, and never another object.

Owns what may go wrong between a store and us; leaves keeping what was read to `_blocks`, and its meaning to `remote`.
"""

import hashlib
import logging
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from packhorse.client.service.retry import RetryPolicy
from packhorse.client.sources.base import TokenSourceError
from packhorse.formats import require

_LOG = logging.getLogger(__name__)
_Result = TypeVar("_Result")
_JITTER = random.SystemRandom()
_VERSIONS = ("ETag", "etag", "generation", "version_id", "md5Hash", "content_md5", "LastModified", "mtime", "created")
"""What stores call that which changes with an object's content, the most telling first."""
_INSTALL = "pip install 'packhorse[stores]' for s3://, gcsfs for gs://, adlfs for az://"


class TokenStoreError(OSError):
    """An object store did not give what it was asked for, however often; the message names the URL and the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """How a store is reached.

    Example:
        >>> StoreOptions(attempt_seconds=10).retry.deadline_seconds
        120.0
    """

    storage_options: Mapping[str, Any] = field(default_factory=dict)
    """What fsspec passes on to the store's file system: an endpoint, a profile, `anon=True`."""
    attempt_seconds: float = 30.0
    """How long one request may take, stalled or not."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    """How long and how often a request is made again."""


class StoredObject:
    """An object at a URL. It pickles by URL, and each process opens the store for itself."""

    def __init__(self, url: str, options: StoreOptions) -> None:
        """Asks the store for the object's size and version.

        Raises:
            FileNotFoundError: there is no such object.
            ImportError: fsspec, or its file system for this kind of URL, is not installed.
            PermissionError: the store does not let us.
            TokenStoreError: the store does not answer.
        """
        self.url = url
        self._options = options
        self._opened: tuple[int, Any, str] | None = None
        info = self._asked("size", lambda store, path: store.info(path))
        if info.get("type") == "directory" or info.get("size") is None:
            raise FileNotFoundError(f"{url} is a folder; give the URL of the token file or of its index")
        self.size_bytes = int(info["size"])
        version = next((str(info[name]) for name in _VERSIONS if info.get(name) is not None), "")
        self.key = hashlib.sha256(f"{url}\n{self.size_bytes}\n{version}".encode()).hexdigest()[:32]
        """What tells this object, in this version, from all others."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def read(self, begin: int, end: int) -> bytes:
        """Returns bytes [begin, end).

        Raises:
            FileNotFoundError: the object is gone.
            PermissionError: the store does not let us.
            TokenStoreError: no attempt before the deadline gave all of them.
        """

        def all_of(store: Any, path: str) -> bytes:
            data: bytes = store.cat_file(path, start=begin, end=end)
            if len(data) != end - begin:
                raise EOFError(f"it gave {len(data):,} bytes")
            return data

        return self._asked(f"bytes {begin:,} to {end:,} of {self.size_bytes:,}", all_of)

    def _asked(self, what: str, ask: Callable[[Any, str], _Result]) -> _Result:
        """Asks until there is an answer, or the deadline has passed."""
        policy = self._options.retry
        store, path = self._store()
        began = time.monotonic()
        failures = 0
        while True:
            try:
                answer = _within(self._options.attempt_seconds, lambda: ask(store, path))
            except (FileNotFoundError, PermissionError) as error:
                raise type(error)(f"{self.url}: {_first_line(error)}; correct the URL, or the store's rights") from None
            except Exception as error:  # each store has exceptions of its own
                failures += 1
                elapsed = time.monotonic() - began
                longest = min(policy.most_delay_seconds, policy.first_delay_seconds * 2 ** min(failures - 1, 60))
                delay = _JITTER.uniform(0, longest)
                if elapsed + delay >= policy.deadline_seconds:
                    raise TokenStoreError(
                        f"{self.url}: no {what} in {failures} attempts over {elapsed:.0f} s; the last failed with "
                        f"{type(error).__name__}: {_first_line(error)}. Check that the store is up and reachable from "
                        "here, or allow more time with StoreOptions(retry=RetryPolicy(deadline_seconds=…))"
                    ) from error
                _LOG.warning("%s: %s failed (%s); trying again", self.url, what, _first_line(error))
                time.sleep(delay)
            else:
                return answer

    def _store(self) -> tuple[Any, str]:
        """The file system and the object's path in it, opened by this very process."""
        if self._opened is None or self._opened[0] != os.getpid():
            require("fsspec", "stores")
            try:
                store, path = require("fsspec.core", "stores").url_to_fs(self.url, **self._options.storage_options)
            except ImportError as error:
                raise ImportError(f"{self.url} needs {_first_line(error)} ({_INSTALL})", name=error.name) from None
            except ValueError as error:
                raise TokenSourceError(f"{self.url}: {error}; give a URL that fsspec knows, or a path") from None
            self._opened = os.getpid(), store, path
        return self._opened[1], self._opened[2]


def _within(seconds: float, work: Callable[[], _Result]) -> _Result:
    """Runs work in a thread of its own, which is left behind when it takes too long.

    Raises:
        TimeoutError: it took too long.
    """
    answers: queue.SimpleQueue[tuple[_Result | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((work(), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=run, name="packhorse-store", daemon=True).start()
    try:
        answer, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
