"""Diagnosis: the steps from a client to a server's first bin, tried until one fails.

Owns the steps, and explaining each failure. Leaves asking for a server's health to `health`, and printing to
`packhorse doctor`.
"""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from packhorse.client import Access, Client, PackhorseError
from packhorse.client.errors import AccessDeniedError, UnauthenticatedError
from packhorse.client.transport.access import NO_ACCESS, variable_of
from packhorse.client.transport.addresses import Endpoint, as_one_address, endpoint_of, hosts_of
from packhorse.client.transport.credentials import Credentials
from packhorse.client.transport.grpc_channels import GrpcTransport
from packhorse.client.transport.handshake import days_left, refusal_of
from packhorse.client.transport.methods import LIST_DATASETS
from packhorse.formats.retry_policy import RetryPolicy
from packhorse.proof.health import ask_health
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import is_local
from packhorse.wire.certificates import days_until, expiry_of

STEPS = ("DNS", "TCP", "TLS", "auth", "versions", "health", "datasets", "first bin")
"""The steps, in order."""

SOON_DAYS = 14
"""Days before its end at which a certificate or token gets a warning."""

_MOST_NAMES = 5
"""Names or addresses that a line lists."""
_ANOTHER_TOKEN = "make another with `packhorse token new` at the server"
"""What to do about a token that is refused or ends soon."""
_FIRST_TOKEN = f"`packhorse token new` at the server makes one; set {variable_of('token_file')} to its file"
"""What to do if the server asks for a token, and there is none."""
_SERVICE = pb.DESCRIPTOR.services_by_name["PackingService"].full_name
"""The service whose health is asked for."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one step.

    Example:
        >>> Finding("TCP", "nobody listens there", is_good=False).is_good
        False
    """

    step: str
    """One of STEPS."""
    text: str
    """What was found, in one line; for a problem, also what to do about it."""
    is_good: bool = True
    """Whether the client can continue."""
    is_warning: bool = False
    """Whether the client can continue, but something should be changed."""

    def __str__(self) -> str:
        """Returns a sign (✓, ! or ✗), the step and the text, in one line."""
        sign = "✗" if not self.is_good else "!" if self.is_warning else "✓"
        return f"{sign} {self.step:<{max(map(len, STEPS))}}  {self.text}"


class _FailedError(Exception):
    """A step has failed. The message has the reason, and what to do about it."""


def diagnose(
    target: str, *, access: Access = NO_ACCESS, dataset: str | None = None, timeout_seconds: float = 5.0
) -> Iterator[Finding]:
    """Yields the finding of each step, for every host of a target; for each host it stops at the first failure.

    Example:
        >>> [(finding.step, finding.is_good) for finding in diagnose("127.0.0.1:1")]
        [('DNS', True), ('TCP', False)]

    Args:
        target: address of one or more servers, as `connect` takes it.
        access: certificates and tokens; by default those of the environment.
        dataset: name of the dataset whose first bin is requested; None for the first one listed.
        timeout_seconds: how long each step may take.

    Raises:
        InvalidRequestError: the target is no valid address.
        ValueError: a file cannot be read, or a token would travel in plain text.
    """
    hosts = hosts_of(target)
    Credentials(access.or_environment(), hosts)  # raises before the first step if files or hosts are wrong
    for host in hosts:
        examination = _Examination(host, access.or_environment(), dataset=dataset, timeout_seconds=timeout_seconds)
        yield from examination.findings()


class _Examination:
    """The steps to one host. Each returns its finding or raises `_FailedError`, and may use earlier results."""

    def __init__(self, host: str, access: Access, *, dataset: str | None, timeout_seconds: float) -> None:
        self._host = host
        self._access = access
        self._dataset = dataset  # None until the step "datasets" has chosen one
        self._timeout_seconds = timeout_seconds
        self._credentials = Credentials(access, (host,))
        self._endpoint = endpoint_of(as_one_address(host))  # None for a unix socket, and for what only gRPC understands
        self._addresses: list[str] = []  # from the step "DNS" on, those of the name; from "TCP" on, those that answer
        self._listed: pb.ListDatasetsResponse | None = None  # from the step "auth" on, unless the token may not list

    def findings(self) -> Iterator[Finding]:
        """Yields the finding of each step, up to the first failure."""
        steps: tuple[Callable[[], Finding], ...] = (
            self._dns,
            self._tcp,
            self._tls,
            self._auth,
            self._versions,
            self._health,
            self._datasets,
            self._first_bin,
        )
        for name, step in zip(STEPS, steps, strict=True):
            try:
                yield step()
            except _FailedError as failure:
                yield Finding(name, str(failure), is_good=False)
                return

    def _dns(self) -> Finding:
        """Looks up the host name."""
        if self._endpoint is None:
            return Finding("DNS", f"{self._host} needs no name to be looked up here")
        name = self._endpoint.host
        if self._endpoint.proxy is not None:
            self._addresses = [name]
            return Finding("DNS", f"{name} is left to the proxy {self._endpoint.proxy}")
        started = time.perf_counter()
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise _FailedError(
                f"{name} cannot be resolved ({error}): check its spelling and, inside a cluster, the namespace "
                "(packhorse.NAMESPACE)"
            ) from None
        self._addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
        return Finding("DNS", f"{name} is {_some(self._addresses)} ({_since(started)})")

    def _tcp(self) -> Finding:
        """Connects to every address of the host; or to its unix socket, or through its proxy."""
        if self._endpoint is None:
            return self._unix_socket()
        if self._endpoint.proxy is not None:
            return self._through_proxy(self._endpoint)
        started = time.perf_counter()
        port = self._endpoint.port
        answering, why = [], ""
        for address in self._addresses:
            try:
                socket.create_connection((address, port), self._timeout_seconds).close()
                answering.append(address)
            except OSError as error:
                why = f"{address} port {port}: {error.strerror or 'no answer in time'}"
        if not answering:
            raise _FailedError(
                f"{why}: is `packhorse serve` running there, does it listen on this port and not only 127.0.0.1, "
                "and does every firewall and NetworkPolicy on the way let it through?"
            )
        num_silent = len(self._addresses) - len(answering)
        self._addresses = answering
        text = f"port {port} of {_some(answering)} answers ({_since(started)})"
        # On this machine a server often listens to only one of 127.0.0.1 and ::1, and nothing is wrong.
        if num_silent and not is_local(self._host):
            return Finding("TCP", f"{text}; {num_silent} other addresses do not: {why}", is_warning=True)
        return Finding("TCP", text)

    def _unix_socket(self) -> Finding:
        """Connects to a unix socket; leaves any other address without a host to gRPC."""
        if not self._host.startswith("unix:"):
            return Finding("TCP", f"{self._host} is left to gRPC")
        started = time.perf_counter()
        path = self._host.removeprefix("unix:").removeprefix("//")
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(self._timeout_seconds)
                probe.connect(path)
        except OSError as error:
            raise _FailedError(
                f"{path}: {error.strerror}: is `packhorse serve --listen unix:{path}` running, and may "
                "this user open it?"
            ) from None
        return Finding("TCP", f"{path} answers ({_since(started)})")

    def _through_proxy(self, endpoint: Endpoint) -> Finding:
        """Connects to the host through its proxy."""
        assert endpoint.proxy is not None
        started = time.perf_counter()
        try:
            endpoint.proxy.connect(endpoint.host, endpoint.port, self._timeout_seconds).close()
        except OSError as error:
            raise _FailedError(str(endpoint.proxy.failure(self._host, f"{self._host}: {error}"))) from None
        return Finding("TCP", f"the proxy {endpoint.proxy} connects to {self._host} ({_since(started)})")

    def _tls(self) -> Finding:
        """Makes a TLS handshake with every address that answers, and checks when certificates expire."""
        if self._endpoint is None:
            return Finding("TLS", "none: nobody on the network can read a unix socket")
        if self._access.cert is not None:
            self._refuse_expired(self._access.cert)
        days = self._days_of_certificates(self._endpoint)
        if not days:
            text = "plain text"
            if is_local(self._host):
                return Finding("TLS", f"{text}, on this machine only")
            return Finding(
                "TLS",
                f"{text}: everyone on the way can read it; serve with --tls-cert, and set {variable_of('ca')}",
                is_warning=True,
            )
        text = f"the server's certificate is for {self._endpoint.server_name}, good for {min(days):.0f} days"
        if self._access.cert is not None:
            own_days = days_until(expiry_of(self._access.cert))
            days.append(own_days)
            text += f", and this client's fits, good for {own_days:.0f} days"
            if own_days < SOON_DAYS:
                text += f": have another issued, and replace {self._access.cert} with it; it is read again"
        return Finding("TLS", text, is_warning=min(days) < SOON_DAYS)

    def _days_of_certificates(self, endpoint: Endpoint) -> list[float]:
        """Makes a TLS handshake with every address; returns how many days each certificate is good for.

        Without TLS it only asks whether each address takes plain text, and returns nothing.
        """
        days = []
        for address in self._addresses:
            replica = endpoint._replace(host=address)
            refusal = refusal_of(replica, self._access, uses_tls=self._credentials.uses_tls)
            if refusal is not None:
                raise _FailedError(str(refusal))
            if self._credentials.uses_tls:
                try:
                    days.append(days_left(replica, self._access))
                except OSError as error:
                    raise _FailedError(
                        f"the connection to {address}:{replica.port} broke during the handshake ({error}): is it a "
                        "packhorse server, or a proxy that ends TLS?"
                    ) from None
        return days

    def _refuse_expired(self, cert: str | Path) -> None:
        """Raises a failure if the client's own certificate cannot be read or has expired."""
        try:
            end = expiry_of(cert)
        except (ValueError, OSError) as error:
            raise _FailedError(f"the client's certificate: {error}") from None
        if days_until(end) <= 0:
            raise _FailedError(
                f"the client's certificate {cert} expired at {end:%Y-%m-%d %H:%M} UTC: have another issued by the CA "
                "of the server's tls_client_ca, and replace the old one; it is read again"
            )

    def _auth(self) -> Finding:
        """Lists the datasets, for which the server checks the token."""
        sends_token = bool(self._credentials.metadata)
        try:
            with self._transport() as transport:
                self._listed = transport.answer(LIST_DATASETS, pb.ListDatasetsRequest(), self._timeout_seconds)
        except UnauthenticatedError as error:
            way_out = _ANOTHER_TOKEN if sends_token else _FIRST_TOKEN
            raise _FailedError(f"{error}; {way_out}") from None
        except AccessDeniedError as error:
            if error.metadata.get("cause") != "method":
                raise _FailedError(str(error)) from None
            return Finding("auth", f"the token is known, but may not list the datasets: {error}", is_warning=True)
        except PackhorseError as error:
            raise _FailedError(
                f"no answer to ListDatasets: {error}; is a packhorse server at this port, and not another service?"
            ) from None
        if self._listed.token_expires_seconds:
            return self._expiry_of_token(self._listed.token_expires_seconds)
        if sends_token:
            return Finding("auth", "the server accepts the token, which never expires, or asks for none")
        return Finding("auth", "the server asks for no token", is_warning=not is_local(self._host))

    def _expiry_of_token(self, expires_seconds: int) -> Finding:
        """Says how long the accepted token is good, which ends at a Unix time."""
        days = days_until(datetime.fromtimestamp(expires_seconds, UTC))
        text = f"the server accepts the token, for {days:.0f} more days"
        if days >= SOON_DAYS:
            return Finding("auth", text)
        return Finding("auth", f"{text}: {_ANOTHER_TOKEN}, and replace this one's file", is_warning=True)

    def _versions(self) -> Finding:
        """Compares the server's version of packhorse with the client's."""
        ours = version("packhorse")
        theirs = (self._listed.server_version if self._listed else "") or "unknown"
        text = f"server {theirs}, client {ours}, gRPC {version('grpcio')}"
        if theirs not in (ours, "unknown"):
            return Finding("versions", f"{text}: run the same on both sides where you can", is_warning=True)
        return Finding("versions", text)

    def _health(self) -> Finding:
        """Asks the packing service for its health."""
        try:
            status = ask_health(
                self._host, access=self._access, timeout_seconds=self._timeout_seconds, service=_SERVICE
            )
        except PackhorseError as error:
            raise _FailedError(f"the server does not answer about its health: {error}") from None
        if status != "SERVING":
            raise _FailedError(
                f"{status}: the server drains, still compiles its kernels (for ten seconds after an install), has no "
                "dataset that it can serve, or has made no block for ten seconds; its log says which, and other "
                "replicas continue"
            )
        return Finding("health", status)

    def _datasets(self) -> Finding:
        """Chooses the dataset whose first bin is requested; fails if it is not served."""
        if self._listed is None:
            if self._dataset is None:
                raise _FailedError("the token may not list them; name the dataset")
            return Finding("datasets", f"the token may not list them; continuing with {self._dataset}")
        names = [dataset.name for dataset in self._listed.datasets]
        if not names:
            raise _FailedError(
                "this token grants access to no served dataset: ask for a token with other datasets=… in its line"
            )
        if self._dataset is not None and self._dataset not in names:
            raise _FailedError(f"no dataset is named {self._dataset}; there are {_some(names)}")
        self._dataset = self._dataset or names[0]
        return Finding("datasets", f"{len(names)}: {_some(names)}")

    def _first_bin(self) -> Finding:
        """Requests the first bin twice: over a new connection, and over one that is open."""
        assert self._dataset is not None
        times = []
        try:
            with self._transport() as transport:
                client = Client(transport, RetryPolicy(deadline_seconds=0))
                for epoch in range(2):  # another epoch, so that the server makes the second bin too
                    started = time.perf_counter()
                    with client.stream_bins(self._dataset, epoch=epoch) as stream:
                        next(stream)
                    times.append(_since(started))
        except PackhorseError as error:
            # A stream's error says where to resume; its cause, what failed.
            cause = error.__cause__ if isinstance(error.__cause__, PackhorseError) else error
            raise _FailedError(f"{self._dataset} sends no bin: {cause}") from None
        return Finding("first bin", f"of {self._dataset} after {times[0]}, over an open connection after {times[1]}")

    def _transport(self) -> "closing[GrpcTransport]":
        """Returns a context with a new transport to the host."""
        return closing(GrpcTransport(self._host, access=self._access))


def _some(names: list[str]) -> str:
    """Returns the first names, and how many more there are."""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _since(started: float) -> str:
    """Returns the time since `started`, in milliseconds, as text."""
    return f"{1000 * (time.perf_counter() - started):.1f} ms"
