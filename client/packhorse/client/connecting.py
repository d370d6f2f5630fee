"""`connect` and `Server`: from a target to a client.

Owns the choice of a transport for each kind of target. Leaves addresses to `transport/addresses`, the client's methods
to `api`, and asking a server before the process forks its workers to `_ask_in_child`.
"""

import pickle
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from packhorse.client._ask_in_child import ask_in_child
from packhorse.client.api import Client
from packhorse.client.error_texts import invalid
from packhorse.client.memory_datasets import MemoryDatasets
from packhorse.client.transport.access import NO_ACCESS, Access
from packhorse.client.transport.addresses import hosts_of
from packhorse.client.transport.embedded import PREFIX, EmbeddedTransport, MemoryTransport
from packhorse.client.transport.grpc_channels import GrpcTransport
from packhorse.client.transport.methods import Transport
from packhorse.client.transport.retries import policy_of
from packhorse.formats.retry_policy import RetryPolicy
from packhorse.parameters import parameter
from packhorse.topology.checks import quoted

if TYPE_CHECKING:
    import grpc

Target = str | MemoryDatasets | Callable[[], Client]
"""What `connect` takes, or a function that returns a Client."""

_Answer = TypeVar("_Answer")

_CHILD_SECONDS = 60.0
"""Time that a child process may take beyond its client's deadline, to start and to send the answer back."""


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
        target: `host:port`; `host:port,host:port` for several replicas; `dns:///host:port` for a name with an address
            for each replica; `unix:PATH`; `embedded:DIR`, without a server; or `MemoryDatasets`. A call goes to any
            replica, and to the others if that one fails or lacks the dataset.
        ca: file of the CAs that signed the server's certificate (PEM), for TLS. This and the next four default to
            environment variables (PACKHORSE_CLIENT_CA, PACKHORSE_CLIENT_CERT and so on); see `Access`.
        cert: file of this client's certificate (PEM), if the server requires one.
        key: file of its private key (PEM, no passphrase).
        token_file: file that holds the token; it is read again for each call.
        token: the token itself, instead of `token_file`.
        insecure: whether the token may be sent to other machines in plain text.
        credentials: channel credentials of gRPC, instead of `ca`, `cert` and `key`.
        timeout_seconds: how long a call waits for an answer over all its attempts. None: two minutes if a server was
            lost, ten seconds if none has ever answered.
        retry: delays and deadlines in detail, instead of `timeout_seconds`.

    Raises:
        ValueError: a token would be sent without TLS, a file cannot be read, or an argument is out of range.
        InvalidRequestError: the target is not an address.
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
    """Returns a client, as `connect` does, of arguments that are already an Access and a RetryPolicy."""
    given = access.given if credentials is None else [*access.given, "credentials"]
    is_server = isinstance(target, str) and not target.startswith(PREFIX)
    if given and not is_server:
        raise ValueError(f"{given[0]} is for a server, and {quoted(target)} has none; leave it out")
    transport: Transport
    if isinstance(target, MemoryDatasets):
        transport = MemoryTransport(target)
    elif not isinstance(target, str):
        raise invalid("target", f"must be HOST:PORT, embedded:DIR or the like, or MemoryDatasets; got {quoted(target)}")
    elif target.startswith(PREFIX):
        transport = EmbeddedTransport(target)
    else:
        transport = GrpcTransport(target, access=access, credentials=credentials)
    return Client(transport, policy)


@dataclass(frozen=True)
class Server:
    """How the main process and each dataloader worker reach servers: a target, and how to connect to it.

    It connects to nothing, so it can be pickled and sent to workers; `open` makes a client in each process.

    Example:
        >>> Server("trainer-7:50051,trainer-8:50051", timeout_seconds=600).name
        'trainer-7:50051,trainer-8:50051'

    Raises:
        ValueError: the target is not an address, or a field is out of range.
    """

    target: Target
    """A target of `connect`, or a function without arguments that returns a Client; for spawned workers it must be
    defined in a module. `MemoryDatasets` for tests of a trainer.
    """
    _: KW_ONLY
    access: Access | None = None
    """Certificates and tokens; None takes them from the environment."""
    timeout_seconds: float | None = None
    """How long a call or a stream waits for an answer over all its attempts. None: two minutes if a server was lost,
    ten seconds if none has ever answered.
    """
    retry: RetryPolicy | None = None
    """Delays and deadlines in detail, instead of `timeout_seconds`."""

    def __post_init__(self) -> None:
        if isinstance(self.target, str):
            if not self.target.startswith(PREFIX):
                hosts_of(self.target)  # raises an error for what is no address
        elif not isinstance(self.target, MemoryDatasets) and not callable(self.target):
            raise ValueError(
                parameter("target") + " must be what `connect` takes, or a function that returns a Client; got "
                f"{quoted(self.target)}"
            )
        if self.access is not None and not isinstance(self.access, Access):
            raise ValueError(f"access must be an Access, e.g. Access(ca='ca.pem'), got {quoted(self.access)}")
        policy_of(self.timeout_seconds, self.retry)  # raises an error for a value out of range
        if callable(self.target) and (self.timeout_seconds, self.retry, self.access) != (None, None, None):
            raise ValueError(
                parameter("timeout_seconds")
                + ", retry and access have no effect: the target is a function, which makes its own client; "
                "leave them out"
            )

    @property
    def name(self) -> str:
        """The target, or the name of the function, for messages."""
        target = self.target
        return getattr(target, "__qualname__", type(target).__qualname__) if callable(target) else str(target)

    def __getstate__(self) -> dict[str, Any]:
        """Refuses a function that cannot be pickled, with a message that says what to do."""
        if callable(self.target):
            try:
                pickle.dumps(self.target)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise ValueError(
                    f"the target {self.name} cannot be sent to workers that are spawned or come from a fork server: "
                    f"define the function at the top of a module, or take num_workers=0 ({error})"
                ) from None
        return self.__dict__

    def open(self) -> Client:
        """Returns a new client."""
        if callable(self.target):
            return self.target()
        return open_client(self.target, self.access or NO_ACCESS, policy_of(self.timeout_seconds, self.retry))

    def ask(self, question: Callable[[], _Answer]) -> _Answer:
        """Returns the result of `question`; asks servers in a child process, so that this process may fork workers.

        A function as target may connect to a server, so it is asked in a child process too.
        """
        is_embedded = isinstance(self.target, str) and self.target.startswith(PREFIX)
        if is_embedded or isinstance(self.target, MemoryDatasets):
            return question()
        policy = policy_of(self.timeout_seconds, self.retry)
        return ask_in_child(question, timeout_seconds=policy.deadline_seconds + _CHILD_SECONDS)


def as_server(target: Target | Server) -> Server:
    """Returns a Server unchanged; makes one of a bare target."""
    return target if isinstance(target, Server) else Server(target)
