"""`Store`: asking the store of a URL, with deadlines and retries, and the errors that this raises.

Leaves when to retry to `formats.retry_policy` and `attempts`, and what a store's own exceptions mean to `failures`.
fsspec, which knows the stores, is imported when a URL is opened.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from packhorse.formats.extras import require
from packhorse.formats.object_store.attempts import StoreAttempts
from packhorse.formats.object_store.failures import is_unreached, lacks_credentials
from packhorse.formats.object_store.urls import text_without_secrets, without_secrets
from packhorse.formats.retry_policy import RetryPolicy, default_retry
from packhorse.parameters import parameter

_Result = TypeVar("_Result")

_INSTALL = "pip install 'packhorse[stores]' for s3://, gcsfs for gs://, adlfs for az://, huggingface_hub for hf://"
"""What to install for each kind of URL, for messages."""
_MOST_CHARACTERS = 200
"""Most characters of a store's own message in ours."""
_answered: set[str] = set()
"""Stores that have answered this process, as scheme and host: "s3://bucket"."""


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


class _Opened(NamedTuple):
    """A store that a process has opened."""

    process: int
    """Id of the process."""
    file_system: Any
    """fsspec's file system of the store."""
    path: str
    """The URL's path in the file system."""


class Store:
    """The store of one URL. It pickles by URL; each process opens the store itself.

    Args:
        url: URL of an object or a folder of objects.
        options: how the store is reached; None for the defaults.
    """

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
        host = "/".join(self.url.split("/", 3)[:3])  # "s3://bucket/folder/file" -> "s3://bucket"
        opened = self._open()
        attempts = StoreAttempts(self.options.retry, without_secrets(self.url))
        while True:
            try:
                answer = attempts.within(self.options.attempt_seconds, lambda: ask(opened.file_system, opened.path))
            except TokenStoreError:  # raised by `ask`: asking again would not help
                raise
            except (FileNotFoundError, PermissionError) as error:
                raise type(error)(
                    f"{self._failure(error)}; correct the URL, or the rights that the store gives"
                ) from None
            except Exception as error:  # each store has exceptions of its own
                if lacks_credentials(error):
                    raise PermissionError(
                        f"{self._failure(error)}; give the store's credentials as its own tools take them, such as "
                        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE for s3://"
                    ) from None
                is_known = host in _answered or not is_unreached(error)
                if not attempts.wait_for_next(what, self._first_line(error), is_known=is_known):
                    raise self._no_answer(what, attempts, error) from None
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
            return dict(self.request("answer", facts_of))
        except FileNotFoundError:
            return None

    def has_object(self) -> bool:
        """Returns whether an object is at the URL."""
        facts = self.look()
        return facts is not None and not are_of_folder(facts)

    def has_folder(self) -> bool:
        """Returns whether objects are below the URL."""
        facts = self.look()
        return facts is not None and are_of_folder(facts)

    def _failure(self, error: BaseException) -> str:
        """Returns the URL and why the store failed, as the beginning of a message."""
        return f"{without_secrets(self.url)}: {self._first_line(error)}"

    def _first_line(self, error: BaseException) -> str:
        """Returns the first line of an error's message, without the secrets of URLs."""
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        return text_without_secrets(line.replace(self.url, without_secrets(self.url)))[:_MOST_CHARACTERS]

    def _no_answer(self, what: str, attempts: StoreAttempts, error: Exception) -> TokenStoreError:
        """Returns the error of the last attempt for which there was time; `what` is as for `request`."""
        return TokenStoreError(
            f"{without_secrets(self.url)}: no {what} in {attempts.failures} attempts over "
            f"{attempts.elapsed_seconds:.0f} s; the last failed with {type(error).__name__}: "
            f"{self._first_line(error)}. Check that the store is up and reachable from here, or allow more time with "
            + parameter("timeout_seconds")
            + ", or StoreOptions(retry=RetryPolicy(…))"
        )

    def _open(self) -> _Opened:
        """Returns the store, which each process opens once.

        A forked process opens its own, because connections and threads do not survive a fork.
        """
        if self._opened is None or self._opened.process != os.getpid():
            require("fsspec", "stores")  # its own error; those below are of the kind of URL
            try:
                file_system, path = require("fsspec.core", "stores").url_to_fs(self.url, **self.options.storage_options)
            except ImportError as error:
                raise ImportError(f"{self._failure(error)} ({_INSTALL})", name=error.name) from None
            except ValueError as error:
                raise ValueError(
                    f"{self._failure(error)}; install a file system for such URLs ({_INSTALL}), or give a path"
                ) from None
            self._opened = _Opened(os.getpid(), file_system, path)
        return self._opened


def facts_of(file_system: Any, path: str) -> Any:
    """Returns the store's facts about a path as they are now, not from a listing that fsspec has cached."""
    file_system.invalidate_cache()
    return file_system.info(path)


def are_of_folder(facts: Mapping[str, Any]) -> bool:
    """Returns whether a store's facts are of a folder, not of an object."""
    return facts.get("type") == "directory"
