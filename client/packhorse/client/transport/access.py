"""Access to servers: a client's certificates and tokens, as its user gives them.

Owns `Access`, these arguments, and the environment variables that give what is left out. Leaves reading the files, and
what gRPC needs of them, to `transport.credentials`.
"""

import os
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from packhorse.parameters import parameter
from packhorse.topology.checks import quoted

_ENVIRONMENT = "PACKHORSE_CLIENT_"


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """Certificates and tokens of a client: `Server("…", access=Access(…))`.

    The environment gives what is left out: PACKHORSE_CLIENT_CA, PACKHORSE_CLIENT_CERT, PACKHORSE_CLIENT_KEY,
    PACKHORSE_CLIENT_TOKEN_FILE and PACKHORSE_CLIENT_INSECURE (1 for True). A unix socket needs no certificates, and an
    embedded target neither certificates nor tokens.

    Example:
        >>> Access(ca="ca.pem", token_file="/run/secrets/packhorse").ca
        'ca.pem'

    Raises:
        ValueError: arguments contradict each other.
    """

    ca: str | Path | None = None
    """File of the CAs that signed the server's certificate (PEM), for TLS."""
    cert: str | Path | None = None
    """File of this client's certificate (PEM), if the server requires one."""
    key: str | Path | None = None
    """File of the certificate's private key (PEM, no passphrase)."""
    token: str | None = field(default=None, repr=False)
    """Bearer token of every call. Prefer `token_file`: its contents are never printed or pickled."""
    token_file: str | Path | None = None
    """File that holds only the token; you may replace it at any time."""
    insecure: bool = False
    """Whether the token may be sent to other machines without TLS."""

    def __post_init__(self) -> None:
        for name in ("ca", "cert", "key", "token_file"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str | Path) or not str(value)):
                raise ValueError(f"{name} must be the path of a file, got {quoted(value)}")
        if self.token is not None and not (isinstance(self.token, str) and self.token.isascii() and self.token.strip()):
            raise ValueError(parameter("token") + " must be a text of ASCII letters, digits and signs")
        if self.token is not None and self.token_file is not None:
            raise ValueError(
                parameter("token")
                + " and "
                + parameter("token_file")
                + " are both given; give "
                + parameter("token_file")
            )
        if not isinstance(self.insecure, bool):
            raise ValueError(parameter("insecure") + f" must be True or False, got {quoted(self.insecure)}")

    @property
    def given(self) -> list[str]:
        """Names of the fields that are set."""
        return [each.name for each in fields(self) if getattr(self, each.name) not in (None, False)]

    def or_environment(self) -> "Access":
        """Returns this access, with the environment's values for fields that are not set."""
        found: dict[str, str | bool] = {}
        # A token file would contradict a token that is given.
        names = ["ca", "cert", "key"] if self.token is not None else ["ca", "cert", "key", "token_file"]
        for name in names:
            value = os.environ.get(variable_of(name))
            if value and getattr(self, name) is None:
                found[name] = value
        if not self.insecure:
            found["insecure"] = os.environ.get(variable_of("insecure"), "").lower() in ("1", "true", "yes", "on")
        return replace(self, **found)  # type: ignore[arg-type]


NO_ACCESS = Access()
"""Nothing given: the environment decides."""


def variable_of(argument: str) -> str:
    """Returns the environment variable of an argument."""
    return f"{_ENVIRONMENT}{argument.upper()}"
