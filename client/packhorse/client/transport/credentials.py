"""What gRPC needs to reach a server, from the certificates and tokens of an `Access`.

Owns the checks that need the target's hosts, reading the files, and opening channels with them. Leaves the arguments to
`transport.access`, the form of targets to `transport.addresses`, and calls to `transport.grpc_channels`.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import grpc

from packhorse.client.transport.access import Access
from packhorse.client.transport.addresses import Address
from packhorse.parameters import parameter
from packhorse.storage import read_plain
from packhorse.topology.checks import quoted
from packhorse.wire import is_local


class Credentials:
    """What gRPC needs for some hosts, from an Access: credentials of channels, and the token with every call.

    Certificates are read for each new channel and the token's file for each call, so you may replace them at any time.

    Args:
        access: the certificates and tokens, with the environment's values filled in.
        hosts: the target's hosts, as `hosts_of` returns them.
        credentials: the credentials of a secure channel; None to make them from `access`.

    Raises:
        ValueError: a token would travel in plain text, a file cannot be read, or one is missing.
    """

    def __init__(
        self, access: Access, hosts: Sequence[str], credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        is_unix = all(host.startswith(("unix:", "unix-abstract:")) for host in hosts)  # such calls stay on this machine
        self.access = access
        self.uses_tls = credentials is None and access.ca is not None and not is_unix
        self._given_credentials = credentials
        _check_certificates(access, credentials)
        if self.uses_tls:
            self.channel_credentials()  # raises an error for a file that cannot be used
        self._token = self._read_token()  # the last one that could be read
        is_plain_text = credentials is None and not self.uses_tls
        if self._token is not None and is_plain_text and not access.insecure:
            _refuse_other_machines(hosts)

    @property
    def are_of_grpc(self) -> bool:
        """Whether the caller gave gRPC's own credentials, instead of files of certificates."""
        return self._given_credentials is not None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata to send with a call: the token, read again from its file."""
        if self.access.token_file is not None:
            with suppress(ValueError):  # the file is being replaced: the last token is used
                self._token = self._read_token()
        return (("authorization", f"Bearer {self._token}"),) if self._token else ()

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """Returns the credentials of a new channel, from the files as they are now; None for plain text."""
        if not self.uses_tls:
            return self._given_credentials
        ca, cert, key = (_read(name, getattr(self.access, name)) for name in ("ca", "cert", "key"))
        if b"-----BEGIN CERTIFICATE-----" not in (ca or b""):
            raise ValueError(f"ca {self.access.ca} holds no certificate (PEM)")
        return grpc.ssl_channel_credentials(ca, key, cert)

    def open_channel(self, address: Address, options: Sequence[tuple[str, object]] = ()) -> grpc.Channel:
        """Returns a new channel; it connects when it is used."""
        if address.authority is not None:
            options = [*options, ("grpc.default_authority", address.authority)]
        if address.proxy is None:  # gRPC itself would take one from the environment; see `_proxies`
            options = [*options, ("grpc.enable_http_proxy", 0)]
        else:
            options = [*options, ("grpc.http_proxy", address.proxy.url)]
        credentials = self.channel_credentials()
        if credentials is None:
            return grpc.insecure_channel(address.target, options)
        return grpc.secure_channel(address.target, credentials, options)

    def _read_token(self) -> str | None:
        """Returns the token, from its file if there is one; a ValueError if the file does not hold one word."""
        if self.access.token_file is None:
            return self.access.token
        text = (_read("token_file", self.access.token_file) or b"").decode("ascii", errors="replace").strip()
        if not text or len(text.split()) != 1 or "\ufffd" in text:
            raise ValueError(
                parameter("token_file") + f" {self.access.token_file} must hold one token and nothing else"
            )
        return text


def _check_certificates(access: Access, credentials: grpc.ChannelCredentials | None) -> None:
    """Raises a ValueError if certificates are given twice, or only a part of what they need."""
    if credentials is not None and (files := [name for name in ("ca", "cert", "key") if name in access.given]):
        raise ValueError(f"credentials and {files[0]} are both given; give one of them")
    has_cert, has_key = access.cert is not None, access.key is not None
    if credentials is None and access.ca is None and (has_cert or has_key):
        raise ValueError("cert and key need ca: there is no TLS without the CA of the server's certificate")
    if has_cert != has_key:
        given, missing = ("cert", "key") if has_cert else ("key", "cert")
        raise ValueError(f"{given} needs {missing}: a certificate and its private key belong together")


def _refuse_other_machines(hosts: Sequence[str]) -> None:
    """Raises a ValueError if a token would be sent to another machine in plain text."""
    if remote_hosts := [host for host in hosts if not is_local(host)]:
        raise ValueError(
            f"the token would be sent to {quoted(remote_hosts[0])} in plain text: give ca=… (TLS), or "
            + parameter("insecure", True)
            + " where everyone on the way may read it"
        )


def _read(name: str, path: str | Path | None) -> bytes | None:
    """Returns a file's content, None for no path; a ValueError with the argument's name if it cannot be read."""
    if path is None:
        return None
    try:
        return read_plain(path)
    except OSError as error:
        raise ValueError(f"{name} {path} cannot be read: {error.strerror}") from None
