"""The activity of servers: their open streams, waiting work, and use of the machine.

Owns asking every process of a target. Rates between two answers are in `packhorse.analysis.activity`, and showing them
is left to `packhorse top`.
"""

from dataclasses import dataclass, fields

import grpc

from packhorse.client import Access, PackhorseError
from packhorse.client.errors import ServerUnavailableError
from packhorse.client.transport.access import NO_ACCESS
from packhorse.client.transport.addresses import Address, addresses_of, endpoint_of, hosts_of
from packhorse.client.transport.credentials import Credentials
from packhorse.client.transport.grpc_errors import exception_of
from packhorse.client.transport.handshake import refusal_of
from packhorse.client.transport.replica import MAX_MESSAGE_BYTES
from packhorse.v1 import packing_pb2 as pb
from packhorse.v1 import packing_pb2_grpc

_TRIES_PER_PROCESS = 8
"""Connections that are tried for each process of an address, because the kernel chooses which process answers."""

_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # so that every new channel makes a new connection
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamActivity:
    """An open stream of a server.

    Example:
        >>> stream = StreamActivity(
        ...     id="1f", method="StreamBins", dataset="corpus", epoch=0, seed=1, rank=3, worker=0, world_size=8,
        ...     batch_size=4, first_step=0, next_step=40, num_steps=900, num_messages=5, sent_bytes=70_000,
        ...     open_seconds=12.0, blocked_seconds=11.5, waiting_seconds=0.2, peer="ipv4:10.0.0.7:41212",
        ... )
        >>> f"rank {stream.rank}: {stream.next_step / stream.num_steps:.0%}"
        'rank 3: 4%'
    """

    id: str
    """Its id, as in the server's log."""
    method: str
    """StreamBins or PackStream; for a PackStream the fields from dataset to num_steps have no meaning."""
    dataset: str
    """The dataset's name."""
    epoch: int
    """0-based."""
    seed: int
    """Seed of the run."""
    rank: int
    """Data-parallel rank."""
    worker: int
    """Dataloader worker within the rank."""
    world_size: int
    """Data-parallel degree."""
    batch_size: int
    """Bins per rank and step."""
    first_step: int
    """The step at which it began; above 0 if it continues after a break."""
    next_step: int
    """The worker's first step that has not been sent yet."""
    num_steps: int
    """Steps that every rank takes."""
    num_messages: int
    """Messages sent."""
    sent_bytes: int
    """Size of the messages sent."""
    open_seconds: float
    """How long it has been open."""
    blocked_seconds: float
    """How long messages waited for the client before they were sent."""
    waiting_seconds: float
    """How long the next message has been waiting; 0 if there is none."""
    peer: str
    """The client's address, as gRPC writes it."""
    digest: str = ""
    """Digest of the dataset's version and the skipped positions; empty from an older server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerActivity:
    """The activity of one process of a server.

    Example:
        >>> activity = ServerActivity(
        ...     address="127.0.0.1:50051", process=7, num_processes=1, server_version="0.1.0", uptime_seconds=3.0,
        ...     max_streams=512, streams=(), waiting_in_lanes={"streams": 0}, sent={"corpus": (10, 70, 9000)},
        ... )
        >>> num_bins, num_sequences, num_tokens = activity.sent["corpus"]
    """

    address: str
    """The address that was asked."""
    process: int
    """A random number, new at each start of the process."""
    num_processes: int
    """Processes at the address."""
    server_version: str
    """The server's version of packhorse."""
    uptime_seconds: float
    """How long the process has been serving."""
    max_streams: int
    """Streams that may be open at once."""
    streams: tuple[StreamActivity, ...]
    """Open streams, the oldest first."""
    waiting_in_lanes: dict[str, int]
    """Lane → time slices of work that wait for a thread."""
    sent: dict[str, tuple[int, int, int]]
    """Dataset → (bins, sequences, tokens) sent since the process began."""
    processor_seconds: float = 0.0
    """Processor time of all its threads; 0 from an older server, as are the fields below."""
    memory_bytes: int = 0
    """Its memory, without mapped files."""
    memory_limit_bytes: int = 0
    """Memory of its container, or of the machine."""
    open_files: int = 0
    """Open files and connections."""
    most_open_files: int = 0
    """Limit of open files and connections."""
    num_connections: int = 0
    """Open connections of all clients."""
    num_connections_without_request: int = 0
    """Open connections without a request so far."""
    bytes_without_request: int = 0
    """Bytes received that are not part of a request's message."""


def ask_activity(target: str, *, access: Access = NO_ACCESS, timeout_seconds: float = 5.0) -> list[ServerActivity]:
    """Returns the activity of every server process of a target.

    Every address of every host is asked. If several processes share an address, connections are made until each process
    has answered. After too many tries a process may be missing.

    Example:
        >>> ask_activity("127.0.0.1:9", timeout_seconds=0.2)  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        packhorse.client.errors.ServerUnavailableError: ...

    Args:
        target: address of one or more servers, as `connect` takes it.
        access: certificates and tokens; by default from the environment. A token must grant GetActivity, and shows only
            streams of its own datasets.
        timeout_seconds: how long to wait for each answer.

    Raises:
        AccessDeniedError: certificates do not fit, or the token does not grant GetActivity.
        UnauthenticatedError: the server does not know the token.
        NotImplementedByServerError: a server is too old for this request.
        ServerUnavailableError: there is no answer from an address in time.
        ValueError: a file cannot be read.
    """
    hosts = hosts_of(target)
    credentials = Credentials(access.or_environment(), hosts)
    found: dict[int, ServerActivity] = {}  # by process, which may be reached at several addresses
    for host in hosts:
        for address in addresses_of(host):
            found |= _ask_all(address, credentials, timeout_seconds)
    return list(found.values())


def _ask_all(address: Address, credentials: Credentials, timeout_seconds: float) -> dict[int, ServerActivity]:
    """Returns the activity of each process at an address, by process: one may be missing after too many tries."""
    found: dict[int, ServerActivity] = {}
    num_processes, num_tries = 1, 0  # the first answer says how many processes there are
    while len(found) < num_processes and num_tries < _TRIES_PER_PROCESS * num_processes:
        answer = _ask(address, credentials, timeout_seconds)
        found[answer.process] = answer
        num_processes = answer.num_processes
        num_tries += 1
    return found


def _ask(address: Address, credentials: Credentials, timeout_seconds: float) -> ServerActivity:
    """Asks one process at an address, over a new connection."""
    with credentials.open_channel(address, _OPTIONS) as channel:
        stub = packing_pb2_grpc.PackingServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            answer: pb.GetActivityResponse = stub.GetActivity(
                pb.GetActivityRequest(), timeout=timeout_seconds, metadata=credentials.metadata
            )
        except grpc.RpcError as error:
            failure = exception_of(error, address.target, address.proxy)
            if isinstance(failure, ServerUnavailableError):
                failure = refusal_at(address, credentials) or failure
            raise failure from None
    return ServerActivity(
        address=address.target,
        process=answer.process,
        num_processes=answer.num_processes,
        server_version=answer.server_version,
        uptime_seconds=answer.uptime_seconds,
        max_streams=answer.max_streams,
        streams=tuple(
            StreamActivity(**{field.name: getattr(stream, field.name) for field in fields(StreamActivity)})
            for stream in answer.streams
        ),
        waiting_in_lanes={lane.name: lane.num_waiting for lane in answer.lanes},
        sent={sent.name: (sent.num_bins, sent.num_sequences, sent.num_tokens) for sent in answer.datasets},
        **{  # the fields from processor_seconds on, whose names are the same in the message
            field.name: getattr(answer.process_activity, field.name)
            for field in answer.process_activity.DESCRIPTOR.fields
        },
    )


def refusal_at(address: Address, credentials: Credentials) -> PackhorseError | None:
    """Returns the error if an address refuses the connection because of certificates; else None."""
    endpoint = endpoint_of(address)
    if endpoint is None:  # e.g. a unix socket
        return None
    return refusal_of(endpoint, credentials.access, uses_tls=credentials.uses_tls)
