"""Certificates and tokens as a connection takes them.

Owns reading their files, and the rule that no token travels in plain text. Leaves connections to
`transport.grpc_channels`, and what went wrong with one to `transport.handshake`.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import grpc

from packhorse.client.streams.requests import shortened
from packhorse.client.transport.access import Access
from packhorse.client.transport.targets import Address
from packhorse.wire import is_local


class Papers:
    """An Access on its way to some hosts: its files are read when they are used, so that they may be replaced.

    Args:
        access: what was given, with the environment.
        hosts: as `hosts_of` returns them.
        credentials: of a secure channel, made by the caller; None to make them from `access`.

    Raises:
        ValueError: a token would travel in plain text, a file cannot be read, or one is missing.
    """

    def __init__(
        self, access: Access, hosts: Sequence[str], credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        is_unix = all(host.startswith(("unix:", "unix-abstract:")) for host in hosts)
        self.access = access
        self.uses_tls = credentials is None and access.ca is not None and not is_unix
        self._credentials = credentials
        if credentials is not None and (more := [name for name in ("ca", "cert", "key") if name in access.given]):
            raise ValueError(f"credentials and {more[0]} say the same; give one of them")
        if access.ca is None and (access.cert is not None or access.key is not None) and credentials is None:
            raise ValueError("cert and key need ca: without the CA of the server's certificate there is no TLS")
        if (access.cert is None) != (access.key is None):
            given, missing = ("key", "cert") if access.cert is None else ("cert", "key")
            raise ValueError(f"{given} needs {missing}: a certificate and its private key belong together")
        if self.uses_tls:
            self.channel_credentials()
        self._token = self._read_token()
        is_plain = credentials is None and not self.uses_tls
        if (
            self._token
            and is_plain
            and not access.insecure
            and (remote := [host for host in hosts if not is_local(host)])
        ):
            raise ValueError(
                f"the token would travel to {shortened(remote[0])} in plain text: give ca=… (TLS), or insecure=True "
                "where everyone on the way may read it"
            )

    @property
    def has_credentials(self) -> bool:
        """Whether the caller made the channel's credentials."""
        return self._credentials is not None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with every call."""
        if self.access.token_file is not None:
            with suppress(ValueError):  # it is just being replaced
                self._token = self._read_token()
        return (("authorization", f"Bearer {self._token}"),) if self._token else ()

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """Returns the credentials of a new channel, from the files as they are now; None for plain text."""
        if not self.uses_tls:
            return self._credentials
        ca, cert, key = (_read(name, getattr(self.access, name)) for name in ("ca", "cert", "key"))
        if b"-----BEGIN CERTIFICATE-----" not in (ca or b""):
            raise ValueError(f"ca {self.access.ca} holds no certificate (PEM)")
        return grpc.ssl_channel_credentials(ca, key, cert)

    def open_channel(self, address: Address, options: Sequence[tuple[str, object]] = ()) -> grpc.Channel:
        """Returns a new channel; it connects when it is used."""
        if address.authority is not None:
            options = [*options, ("grpc.default_authority", address.authority)]
        credentials = self.channel_credentials()
        if credentials is None:
            return grpc.insecure_channel(address.target, options)
        return grpc.secure_channel(address.target, credentials, options)

    def _read_token(self) -> str | None:
        if self.access.token_file is None:
            return self.access.token
        text = (_read("token_file", self.access.token_file) or b"").decode("ascii", errors="replace").strip()
        if not text or len(text.split()) != 1 or "\ufffd" in text:
            raise ValueError(f"token_file {self.access.token_file} must hold one token and nothing else")
        return text


def _read(name: str, path: str | Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{name} {path} cannot be read: {error.strerror}") from None
