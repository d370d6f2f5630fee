"""`connect`: from a target to a client.

Owns which transport a target gets, and what goes with it. Leaves addresses to `transport/targets`, and what a client
does to `api`.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from packhorse.client.api import Client
from packhorse.client.transport.access import Access
from packhorse.client.transport.embedded import PREFIX, EmbeddedTransport, MemoryTransport
from packhorse.client.transport.grpc_channels import GrpcTransport
from packhorse.client.transport.memory_datasets import MemoryDatasets
from packhorse.client.transport.requests import invalid, shortened
from packhorse.client.transport.retries import policy_of
from packhorse.client.transport.transport import Transport
from packhorse.formats.asking import RetryPolicy

if TYPE_CHECKING:
    import grpc


def connect(
    target: str | MemoryDatasets,
    *,
    ca: str | Path | None = None,
    cert: str | Path | None = None,
    key: str | Path | None = None,
    token_file: str | Path | None = None,
    token: str | None = None,
    insecure: bool = False,
    credentials: "grpc.ChannelCredentials | None" = None,
    timeout_seconds: float | None = None,
    retry: RetryPolicy | None = None,
) -> Client:
    """Returns a client of a server, or of the prepared datasets in a folder.

    Example:
        >>> with connect("embedded:datasets") as client:
        ...     client.get_dataset("corpus").total_tokens
        16

    Args:
        target: `host:port`; `host:port,host:port` for several replicas; `dns:///host:port` for a name; `unix:PATH`; or
            `embedded:DIR` for no server at all. Every address of a name counts as a replica. A call goes to any of
            them, and to the others where that one fails or lacks the dataset. Or `MemoryDatasets`.
        ca: file with the CAs of the server's certificate (PEM); TLS is used where it is given. What is left out of
            this and the next four is taken from PACKHORSE_CLIENT_CA, PACKHORSE_CLIENT_CERT and so on; see `Access`.
        cert: file of this client's certificate (PEM), where the server wants one.
        key: file of its private key (PEM, no passphrase).
        token_file: file that holds the token which the server wants; it is read again for each call.
        token: the token itself, instead.
        insecure: whether the token may be sent to other machines in plain text.
        credentials: of a secure channel, instead of `ca`, `cert` and `key`.
        timeout_seconds: how long a call goes on without an answer, however often it is tried. None: two minutes where a
            server was lost, ten seconds where none has ever answered.
        retry: the same in detail, instead of `timeout_seconds`.

    Raises:
        ValueError: a token would travel in plain text, a file cannot be read, or an argument is out of range.
        InvalidRequestError: nothing could ever listen at the target.
        PackhorseError: an embedded folder has no dataset that can be opened.
    """
    access = Access(ca=ca, cert=cert, key=key, token=token, token_file=token_file, insecure=insecure)
    return open_client(target, access, policy_of(timeout_seconds, retry), credentials)


def open_client(
    target: str | MemoryDatasets,
    access: Access,
    policy: RetryPolicy,
    credentials: "grpc.ChannelCredentials | None" = None,
) -> Client:
    """Returns what `connect` returns, for arguments that were put together before."""
    given = [*access.given, *(["credentials"] if credentials is not None else [])]
    if given and not (isinstance(target, str) and not target.startswith(PREFIX)):
        raise ValueError(f"{given[0]} is for a server; there is none behind {shortened(target)}")
    transport: Transport
    if isinstance(target, MemoryDatasets):
        transport = MemoryTransport(target)
    elif not isinstance(target, str):
        raise invalid(
            "target", f"must be HOST:PORT, embedded:DIR or the like, or MemoryDatasets; got {shortened(target)}"
        )
    elif target.startswith(PREFIX):
        transport = EmbeddedTransport(target)
    else:
        transport = GrpcTransport(target, access=access, credentials=credentials)
    return Client(transport, policy)
