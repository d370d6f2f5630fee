"""Bearer tokens: their names, grants and expiry.

Owns the token file and its lines (grants). Leaves what the sender of a call may read and change to `access.caller`, and
the check that every call has a token to `interceptor`.

A token is 256 random bits, so its plain SHA-256 does not reveal it: there is nothing to guess, and a slow hash such as
scrypt, made for passwords that people choose, would only let strangers use up the server's time.
"""

import hashlib
import hmac
import logging
import re
import secrets
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path

from packhorse.parameters import parameter
from packhorse.server.base.faults import ServiceError
from packhorse.storage import Watched, read_plain
from packhorse.v1 import packing_pb2 as pb

_LOG = logging.getLogger(__name__)

PREFIX = "packhorse_"
"""What every token begins with, so that programs that look for leaked secrets can find it."""

METRICS, REFLECTION, TOKENS = "Metrics", "Reflection", "Tokens"
"""Names that `methods=` of a line may have beside the service's methods: scraping the metrics' port, gRPC's server
reflection, and the text itself as tokens, in streams and answers."""

METHODS = (*pb.DESCRIPTOR.services_by_name["PackingService"].methods_by_name, METRICS, REFLECTION, TOKENS)
"""Everything that a token may be for."""

ONLY_BY_NAME = ("AppendStage", TOKENS)
"""Methods that change runs or show their text: `methods=` must name them; no pattern covers them, not even `*`."""

MOST_TOKENS = 1000
"""Most tokens in a file, because each request is compared with all of them."""

MOST_BYTES = 1 << 20
"""Most bytes of a token file: a thousand long lines. A larger one is no token file, and reading it would hold up every
call."""

GONE_SECONDS = 10.0
"""Seconds without the file, or without a token in it, after which all tokens are withdrawn. Editors, and `>` of shells,
leave a file empty for a moment, which must not end runs."""

FRESH_SECONDS = 0.25
"""Seconds after which the file is looked at again. Not at every call: thousands may come at once."""

_ADD_ONE = "`packhorse token new` adds one"

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_PATTERNS = re.compile(r"[^\s,]+(,[^\s,]+)*")


@dataclass(frozen=True, slots=True)
class Grant:
    """One line of a token file: who holds the token, and for which datasets and methods.

    Example:
        >>> grant = Grant.parse("team-a sha256:" + "0" * 64 + " datasets=corpus*,books methods=* expires=2031-01-01")
        >>> grant.allows_dataset("corpus-v2"), grant.allows_dataset("secret"), grant.expires.year
        (True, False, 2031)
    """

    name: str
    """Name of its holder, for people and the log."""
    hash: str
    """`sha256:` and the hexadecimal hash of the token."""
    datasets: tuple[str, ...] = ("*",)
    """Patterns (`*`, `?`, `[…]`) of the datasets' names."""
    methods: tuple[str, ...] = ("*",)
    """Patterns of METHODS. Methods in ONLY_BY_NAME are granted only if one of these is their whole name."""
    expires: datetime | None = None
    """When the token expires, in UTC; None for never."""

    def __post_init__(self) -> None:
        """Checks every field."""
        if not _NAME.fullmatch(self.name):
            raise ValueError(parameter("name") + f" must be up to 64 letters, digits and ._-, got {self.name[:80]!r}")
        if not _HASH.fullmatch(self.hash):
            raise ValueError(f"the hash of {self.name} must be sha256: and 64 hexadecimal digits")
        for field, patterns in (("datasets", self.datasets), ("methods", self.methods)):
            if not _PATTERNS.fullmatch(",".join(patterns)):
                raise ValueError(
                    f"{field} of {self.name} must be patterns with commas between them, e.g. corpus*,books"
                )
        for pattern in dict.fromkeys(self.methods):
            if not any(fnmatchcase(method, pattern) for method in METHODS):
                raise ValueError(
                    f"methods of {self.name}: {pattern!r} matches no method; there are {', '.join(METHODS)}"
                )

    @classmethod
    def parse(cls, line: str) -> "Grant":
        """Reads `NAME sha256:HASH [datasets=…] [methods=…] [expires=…]`.

        Raises:
            ValueError: the line is something else; the message does not contain the hash.
        """
        name, *words = line.split()
        if not words:
            raise ValueError(f"{name[:80]!r} has no hash; `packhorse token new` writes whole lines")
        token_hash, *options = words
        scopes = {}
        for word in options:
            field, equals, value = word.partition("=")
            if not equals or field not in ("datasets", "methods", "expires") or field in scopes:
                raise ValueError(f"{word[:80]!r} of {name} must be datasets=…, methods=… or expires=…, each once")
            scopes[field] = value
        return cls(
            name=name,
            hash=token_hash,
            datasets=tuple(scopes.get("datasets", "*").split(",")),
            methods=tuple(scopes.get("methods", "*").split(",")),
            expires=parse_time(scopes["expires"]) if "expires" in scopes else None,
        )

    def __str__(self) -> str:
        """Returns the line of the token file."""
        scopes = [f"datasets={','.join(self.datasets)}", f"methods={','.join(self.methods)}"]
        if self.expires is not None:
            scopes.append(f"expires={self.expires:%Y-%m-%dT%H:%M:%SZ}")
        return " ".join((self.name, self.hash, *scopes))

    @property
    def has_expired(self) -> bool:
        """Whether the token has expired."""
        return self.expires is not None and datetime.now(UTC) >= self.expires

    @property
    def covers_every_dataset(self) -> bool:
        """Whether the token is for all datasets, so that its holder may see all their names."""
        return "*" in self.datasets

    def allows_dataset(self, name: str) -> bool:
        """Whether the token is for a dataset of this name."""
        return any(fnmatchcase(name, pattern) for pattern in self.datasets)

    def check_method(self, method: str) -> None:
        """Raises a ServiceError if the grant is not for a method."""
        patterns = [] if method in ONLY_BY_NAME else self.methods
        is_allowed = method in self.methods or any(fnmatchcase(method, pattern) for pattern in patterns)
        if not is_allowed:
            raise ServiceError(
                pb.ERROR_REASON_ACCESS_DENIED,
                f"this token ({self.name}) is not for {method}; ask whoever runs the server for one that is",
                {"cause": "method"},
            )

    def check_dataset(self, name: str) -> None:
        """Raises a ServiceError if the grant is not for a dataset, whether there is one of that name or not."""
        if not self.allows_dataset(name):
            raise ServiceError(
                pb.ERROR_REASON_ACCESS_DENIED,
                f"this token ({self.name}) is not for dataset {name[:80]!r}; ask whoever runs the server for one that "
                "is",
                {"cause": "dataset"},
            )


class TokenFile:
    """The grants of a file, always its current ones.

    If the file is gone or has no token any more, nobody is admitted after GONE_SECONDS: whoever deletes it wants to
    withdraw every token. If the file has another error, the previous grants stay. Both are logged, and `trouble` says
    so until the file is right.

    Args:
        path: a line for each token; empty lines and those that begin with # are skipped.

    Raises:
        ValueError: the file cannot be used; the message names the option, line and field, never a hash.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file = Watched("the token file", [path], lambda: _grants_in(path), fresh_seconds=FRESH_SECONDS)
        self._gone_since: float | None = None  # by `time.monotonic`; None while the file has a token
        grants = self._file.get()
        if grants is None:
            raise ValueError(parameter("token_file") + f" {path} cannot be read: there is no such file")
        if not grants:
            raise ValueError(
                parameter("token_file") + f" {path} must hold 1 to {MOST_TOKENS:,} tokens, got 0; {_ADD_ONE}"
            )
        self._grants = grants

    def grant_of(self, authorization: str | None) -> Grant:
        """Returns the grant of the token in a call's authorization header, which is None if the call had none.

        Raises:
            ServiceError: there is no token, or an unknown or expired one.
        """
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise _unauthenticated("missing", "this server requires a token: give token_file=…")
        found: Grant | None = None
        token_hash = hash_of(token)
        for grant in self.grants():  # to the end, without a `break`, so that the time does not reveal which matches
            if hmac.compare_digest(grant.hash, token_hash):
                found = grant
        if found is None:
            raise _unauthenticated("unknown", "this server does not know the token; it may have been withdrawn")
        if found.has_expired:
            raise _unauthenticated("expired", f"the token ({found.name}) expired at {found.expires:%Y-%m-%d %H:%M} UTC")
        return found

    def check_again(self, grant: Grant) -> None:
        """Raises a ServiceError if a grant has meanwhile expired, or was withdrawn or changed."""
        if grant.has_expired:
            raise _unauthenticated("expired", f"the token ({grant.name}) expired meanwhile")
        if grant not in self.grants():
            raise _unauthenticated("unknown", f"the token ({grant.name}) was withdrawn or changed; connect again")

    def grants(self) -> tuple[Grant, ...]:
        """Returns all grants, expired ones as well, in the order of the file."""
        with self._lock:
            in_file, now = self._file.get(), time.monotonic()
            if in_file:
                self._grants, self._gone_since = in_file, None
            elif self._gone_since is None:
                self._gone_since = now
                _LOG.error("%s: if it stays so for %g s, no token is accepted", self._missing(in_file), GONE_SECONDS)
            elif now - self._gone_since >= GONE_SECONDS and self._grants:
                self._grants = ()
                _LOG.error("%s: no token is accepted", self._missing(in_file))
            return self._grants

    @property
    def trouble(self) -> str:
        """What is wrong with the file now; empty if nothing is."""
        accepted, in_file = self.grants(), self._file.get()
        if in_file:
            return self._file.trouble
        return self._missing(in_file) + ("" if accepted else ": no token is accepted")

    def expiries(self) -> dict[str, float]:
        """Returns when tokens expire, by their names, in seconds since 1970; without those that never do."""
        return {grant.name: grant.expires.timestamp() for grant in self.grants() if grant.expires is not None}

    def _missing(self, in_file: tuple[Grant, ...] | None) -> str:
        """Returns a sentence about a file that is gone, or whose grants are none."""
        return parameter("token_file") + f" {self._path} {('is gone' if in_file is None else 'has no token')}"


def _grants_in(path: Path) -> tuple[Grant, ...] | None:
    """Returns the grants of a file, None if it is gone; raises a ValueError if it cannot be used."""
    try:
        data = read_plain(path, MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(parameter("token_file") + f" {path} cannot be read: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise ValueError(parameter("token_file") + f" {path} is larger than 1 MiB; a token file is a few lines of text")
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        raise ValueError(parameter("token_file") + f" {path} is not text") from None
    grants: dict[str, Grant] = {}
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                grant = Grant.parse(line)
            except ValueError as error:
                raise ValueError(parameter("token_file") + f" {path}, line {number}: {error}") from None
            if grant.name in grants:
                raise ValueError(
                    parameter("token_file") + f" {path}, line {number}: a second token is named {grant.name}"
                )
            grants[grant.name] = grant
            if len(grants) > MOST_TOKENS:
                raise ValueError(
                    parameter("token_file")
                    + f" {path} must hold 1 to {MOST_TOKENS:,} tokens, got more; delete lines that have expired"
                )
    return tuple(grants.values())


def new_token() -> str:
    """Returns a new random token."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_of(token: str) -> str:
    """Returns the hash of a token as it is in the file: `sha256:` and 64 hexadecimal digits."""
    return "sha256:" + hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def parse_time(text: str) -> datetime:
    """Reads a time in ISO 8601, in UTC if it names no zone; raises a ValueError if the text is something else.

    Example:
        >>> parse_time("2031-01-01").isoformat()
        '2031-01-01T00:00:00+00:00'
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            parameter("expires") + f" must be a time such as 2031-01-01 or 2031-01-01T12:00:00Z, got {text[:80]!r}"
        ) from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _unauthenticated(cause: str, message: str) -> ServiceError:
    return ServiceError(pb.ERROR_REASON_UNAUTHENTICATED, message, {"cause": cause})
