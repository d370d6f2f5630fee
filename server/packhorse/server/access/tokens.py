"""Bearer tokens: who holds one, what for, and until when.

Owns the token file, its lines and what a token grants; leaves where a token is asked for to `access`.

A token is 256 random bits, so its plain SHA-256 does not reveal it: there is nothing to guess, and a slow hash
such as scrypt, made for passwords that people choose, would only let strangers use up the server's time.
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

from packhorse.server.base.faults import ServiceError
from packhorse.server.base.stamps import FileStamps
from packhorse.v1 import packing_pb2 as pb

_LOG = logging.getLogger(__name__)

PREFIX = "packhorse_"
"""What every token begins with, so that programs that look for leaked secrets can find it."""

METRICS = "Metrics"
"""What stands beside the service's methods in a scope: scraping the metrics' port."""

REFLECTION = "Reflection"
"""Likewise: gRPC's server reflection."""

METHODS = (*pb.DESCRIPTOR.services_by_name["PackingService"].methods_by_name, METRICS, REFLECTION)
"""Everything that a token may be for."""

CHANGING = ("AppendStage",)
"""Those that change something: a scope must name them as they are, no pattern stands for them."""

MOST_TOKENS = 1000
"""In a file: each request is compared with all of them."""

MOST_BYTES = 1 << 20
"""Of a file: a thousand long lines. A larger one is no token file, and reading it would hold up every call."""

GONE_SECONDS = 10.0
"""A file that has been gone or without tokens for so long withdraws all of them. Editors, and `>` of shells, leave it
so for a moment, and that must not end runs."""

_ADD_ONE = "`packhorse token new` adds one"

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_PATTERNS = re.compile(r"[^\s,]+(,[^\s,]+)*")


@dataclass(frozen=True, slots=True)
class Grant:
    """One line of a token file: who, and what for.

    Example:
        >>> grant = Grant.parse("team-a sha256:" + "0" * 64 + " datasets=corpus*,books methods=* expires=2031-01-01")
        >>> grant.allows_dataset("corpus-v2"), grant.allows_dataset("secret"), grant.expires.year
        (True, False, 2031)
    """

    name: str
    """Of its holder, for people and the log."""
    hash: str
    """`sha256:` and the hexadecimal hash of the token."""
    datasets: tuple[str, ...] = ("*",)
    """Patterns (`*`, `?`, `[…]`) of the datasets' names."""
    methods: tuple[str, ...] = ("*",)
    """Patterns of METHODS; those of CHANGING stand for themselves alone."""
    expires: datetime | None = None
    """When it ends, in UTC; None for never."""

    def __post_init__(self) -> None:
        """Checks every field."""
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name must be up to 64 letters, digits and ._-, got {self.name[:80]!r}")
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
                    f"methods of {self.name}: {pattern!r} is none of {', '.join(METHODS)}, nor matches one"
                )

    @classmethod
    def parse(cls, line: str) -> "Grant":
        """Reads `NAME sha256:HASH [datasets=…] [methods=…] [expires=…]`.

        Raises:
            ValueError: the line is something else; the hash is not repeated.
        """
        name, *words = line.split()
        if not words:
            raise ValueError(f"{name[:80]!r} has no hash; `packhorse token new` writes whole lines")
        scopes = {}
        for word in words[1:]:
            field, equals, value = word.partition("=")
            if not equals or field not in ("datasets", "methods", "expires") or field in scopes:
                raise ValueError(f"{word[:80]!r} of {name} must be datasets=…, methods=… or expires=…, each once")
            scopes[field] = value
        return cls(
            name,
            words[0],
            tuple(scopes.get("datasets", "*").split(",")),
            tuple(scopes.get("methods", "*").split(",")),
            parse_time(scopes["expires"]) if "expires" in scopes else None,
        )

    def __str__(self) -> str:
        """The line."""
        scopes = [f"datasets={','.join(self.datasets)}", f"methods={','.join(self.methods)}"]
        if self.expires is not None:
            scopes.append(f"expires={self.expires:%Y-%m-%dT%H:%M:%SZ}")
        return " ".join((self.name, self.hash, *scopes))

    @property
    def has_expired(self) -> bool:
        """Whether its time is over."""
        return self.expires is not None and datetime.now(UTC) >= self.expires

    @property
    def covers_every_dataset(self) -> bool:
        """Whether it may know the names of all datasets."""
        return "*" in self.datasets

    def allows_dataset(self, name: str) -> bool:
        """Whether it is for a dataset."""
        return any(fnmatchcase(name, pattern) for pattern in self.datasets)

    def check_method(self, method: str) -> None:
        """Raises a ServiceError where the grant is not for a method."""
        is_named = method in self.methods
        if not is_named and (method in CHANGING or not any(fnmatchcase(method, each) for each in self.methods)):
            raise ServiceError(
                pb.ERROR_REASON_ACCESS_DENIED,
                f"this token ({self.name}) is not for {method}; ask whoever runs the server for one that is",
                {"cause": "method"},
            )

    def check_dataset(self, name: str) -> None:
        """Raises a ServiceError where the grant is not for a dataset, whether there is one of that name or not."""
        if not self.allows_dataset(name):
            raise ServiceError(
                pb.ERROR_REASON_ACCESS_DENIED,
                f"this token ({self.name}) is not for dataset {name[:80]!r}; ask whoever runs the server for one that "
                "is",
                {"cause": "dataset"},
            )


class TokenFile:
    """The grants of a file, always those that it holds now.

    Where the file is gone, or holds no token any more, nobody is let in after GONE_SECONDS: whoever deletes it wants to
    withdraw every token. A file that changed into something else that cannot be used is left alone, and the grants
    before it stay. The log says both, and `trouble` as long as it lasts.

    Args:
        path: a line for each token; empty lines and those that begin with # are skipped.

    Raises:
        ValueError: the file cannot be used; the message names its flag, line and field, never a hash.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stamps = FileStamps([path])
        try:
            self._grants = self._read()
        except FileNotFoundError as error:
            raise ValueError(f"--token-file {path} cannot be read: {error.strerror}") from None
        self._gone_since: float | None = None
        self._trouble = ""
        if not self._grants:
            raise ValueError(f"--token-file {path} must hold 1 to {MOST_TOKENS:,} tokens, got 0; {_ADD_ONE}")

    def grant_of(self, authorization: str | None) -> Grant:
        """Returns what the caller may do.

        Args:
            authorization: the header of that name; None where there was none.

        Raises:
            ServiceError: no token came, or one that is unknown or expired.
        """
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise _unauthenticated("missing", "this server wants a token, and none came: give token_file=…")
        found: Grant | None = None
        digest = hash_of(token)
        for grant in self.grants():
            if hmac.compare_digest(grant.hash, digest):  # and on: how long it takes tells nothing of which it is
                found = grant
        if found is None:
            raise _unauthenticated("unknown", "this server does not know the token; it may have been withdrawn")
        if found.has_expired:
            raise _unauthenticated("expired", f"the token ({found.name}) expired at {found.expires:%Y-%m-%d %H:%M} UTC")
        return found

    def check_again(self, grant: Grant) -> None:
        """Raises a ServiceError where a grant has expired, or was withdrawn or narrowed, since it was given out."""
        if grant.has_expired:
            raise _unauthenticated("expired", f"the token ({grant.name}) expired meanwhile")
        if grant not in self.grants():
            raise _unauthenticated("unknown", f"the token ({grant.name}) was withdrawn or changed; connect again")

    def grants(self) -> tuple[Grant, ...]:
        """Returns every token's, expired ones as well, in the order of the file."""
        with self._lock:
            if self._stamps.changed():
                self._renew()
            if self._gone_since is not None and time.monotonic() - self._gone_since >= GONE_SECONDS and self._grants:
                self._grants, self._trouble = (), f"{self._trouble}: no token is accepted"
                _LOG.error(self._trouble)
            return self._grants

    @property
    def trouble(self) -> str:
        """What is wrong with the file now; empty where nothing is."""
        self.grants()
        return self._trouble

    def ends(self) -> dict[str, float]:
        """Returns when tokens expire, by their names, in seconds since 1970; without those that never do."""
        return {grant.name: grant.expires.timestamp() for grant in self.grants() if grant.expires is not None}

    def _renew(self) -> None:
        """Reads the file again, which changed."""
        try:
            grants = self._read()
        except FileNotFoundError:
            self._begin_to_miss("is gone")
        except ValueError as error:
            self._trouble, self._gone_since = f"{error}; the tokens before it stay", None
            _LOG.error("the tokens changed but cannot be used, so the old ones stay: %s", error)
        else:
            if not grants:
                self._begin_to_miss("holds no token")
                return
            self._grants, self._trouble, self._gone_since = grants, "", None
            _LOG.info("the tokens changed; there are %d now", len(grants))

    def _begin_to_miss(self, what: str) -> None:
        self._trouble = f"--token-file {self._path} {what}"
        if self._gone_since is None:
            self._gone_since = time.monotonic()
            _LOG.error("%s: where it stays so for %g s, no token is accepted", self._trouble, GONE_SECONDS)

    def _read(self) -> tuple[Grant, ...]:
        """Returns the file's grants.

        Raises:
            FileNotFoundError: there is none.
            ValueError: it cannot be used.
        """
        try:
            with self._path.open("rb") as file:
                data = file.read(MOST_BYTES + 1)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ValueError(f"--token-file {self._path} cannot be read: {error.strerror}") from None
        if len(data) > MOST_BYTES:
            raise ValueError(f"--token-file {self._path} is larger than {MOST_BYTES >> 20} MiB, so it is no token file")
        try:
            lines = data.decode().splitlines()
        except UnicodeDecodeError:
            raise ValueError(f"--token-file {self._path} is no text") from None
        grants: dict[str, Grant] = {}
        for number, line in enumerate(lines, 1):
            if line.strip() and not line.lstrip().startswith("#"):
                try:
                    grant = Grant.parse(line)
                except ValueError as error:
                    raise ValueError(f"--token-file {self._path}, line {number}: {error}") from None
                if grant.name in grants:
                    raise ValueError(f"--token-file {self._path}, line {number}: a second token is named {grant.name}")
                grants[grant.name] = grant
                if len(grants) > MOST_TOKENS:
                    raise ValueError(
                        f"--token-file {self._path} must hold 1 to {MOST_TOKENS:,} tokens, got more; delete lines that "
                        "have expired"
                    )
        return tuple(grants.values())


def new_token() -> str:
    """Returns a token that nobody has."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_of(token: str) -> str:
    """Returns what a file keeps of a token."""
    return "sha256:" + hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def parse_time(text: str) -> datetime:
    """Reads a time in ISO 8601, in UTC where it names no other zone; a ValueError where it is none.

    Example:
        >>> parse_time("2031-01-01").isoformat()
        '2031-01-01T00:00:00+00:00'
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"expires must be a time such as 2031-01-01 or 2031-01-01T12:00:00Z, got {text[:80]!r}"
        ) from None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _unauthenticated(cause: str, message: str) -> ServiceError:
    return ServiceError(pb.ERROR_REASON_UNAUTHENTICATED, message, {"cause": cause})
