"""How a client knows its server, and is known to it: certificates and tokens.

Owns the arguments and the environment variables that replace them; leaves their files to `transport.credentials`.
"""

import os
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from packhorse.client.streams.requests import shortened

_ENVIRONMENT = "PACKHORSE_CLIENT_"


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """Certificates and tokens of a client, as arguments of `connect`; `PackedDataset(…, access=Access(…))`.

    What is left out is taken from PACKHORSE_CLIENT_CA, PACKHORSE_CLIENT_CERT, PACKHORSE_CLIENT_KEY,
    PACKHORSE_CLIENT_TOKEN_FILE and PACKHORSE_CLIENT_INSECURE (1 for True). These are for servers on the network: a unix
    socket needs no certificates, an embedded target nothing at all.

    Example:
        >>> Access(ca="ca.pem", token_file="/run/secrets/packhorse").ca
        'ca.pem'

    Raises:
        ValueError: arguments contradict each other.
    """

    ca: str | Path | None = None
    """CAs of the server's certificate (PEM); TLS is used where it is given."""
    cert: str | Path | None = None
    """This client's certificate (PEM), where the server wants one."""
    key: str | Path | None = None
    """Its private key (PEM, no passphrase)."""
    token: str | None = field(default=None, repr=False)
    """Sent as a bearer token. A file is better: nothing in this process prints or pickles what is in it."""
    token_file: str | Path | None = None
    """A file that holds the token and nothing else; it may be replaced at any time."""
    insecure: bool = False
    """Whether the token may be sent in plain text to other machines."""

    def __post_init__(self) -> None:
        """Checks the arguments against each other; files are looked at when they are needed."""
        for name in ("ca", "cert", "key", "token_file"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str | Path) or not str(value)):
                raise ValueError(f"{name} must be the path of a file, got {shortened(value)}")
        if self.token is not None and not (isinstance(self.token, str) and self.token.isascii() and self.token.split()):
            raise ValueError("token must be a text of ASCII letters, digits and signs")
        if self.token is not None and self.token_file is not None:
            raise ValueError("token and token_file say the same; give token_file alone")
        if not isinstance(self.insecure, bool):
            raise ValueError(f"insecure must be True or False, got {shortened(self.insecure)}")

    @property
    def given(self) -> list[str]:
        """Names of the arguments that say something."""
        return [each.name for each in fields(self) if getattr(self, each.name) not in (None, False)]

    def or_environment(self) -> "Access":
        """Returns these arguments, and the environment's where there are none."""
        found: dict[str, str | bool] = {}
        for name in ("ca", "cert", "key", "token_file"):
            value = os.environ.get(variable_of(name))
            if value and getattr(self, name) is None and not (name == "token_file" and self.token is not None):
                found[name] = value
        if not self.insecure:
            found["insecure"] = os.environ.get(variable_of("insecure"), "").lower() in ("1", "true", "yes", "on")
        return replace(self, **found)  # type: ignore[arg-type]


NO_ACCESS = Access()
"""Nothing but what the environment says."""


def variable_of(argument: str) -> str:
    """Returns the environment variable that stands in for an argument."""
    return f"{_ENVIRONMENT}{argument.upper()}"
