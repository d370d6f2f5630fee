"""Whether a server serves, as it says itself.

Owns the one question; leaves what is done about the answer to commands.
"""

import math

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from packhorse.client.errors import PackhorseError
from packhorse.client.transport.access import NO_ACCESS, Access, Address, Credentials, host_and_port, hosts_of
from packhorse.client.transport.failures import exception_of, refusal_of


def ask_health(target: str, *, access: Access = NO_ACCESS, timeout_seconds: float, service: str = "") -> str:
    """Returns a server's health: SERVING, NOT_SERVING or UNKNOWN.

    NOT_SERVING: it starts or drains, makes no blocks, or has no dataset that it can serve. Where nobody listens, it
    raises at once. No token is needed, and none is sent.

    Example:
        >>> ask_health("127.0.0.1:9", timeout_seconds=0.2)  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        packhorse.client.errors.ServerUnavailableError: ...

    Args:
        target: of one server, as `connect` takes it.
        access: certificates; what is left out is taken from the environment.
        timeout_seconds: how long to wait for an answer; math.inf for no limit.
        service: whose health; empty for the process's.

    Raises:
        AccessDeniedError: certificates do not fit.
        ServerUnavailableError: no server answers in time.
        ValueError: a file cannot be read, or timeout_seconds is out of range.
    """
    if math.isnan(timeout_seconds) or timeout_seconds <= 0:
        raise ValueError(f"timeout_seconds must be above 0, got {timeout_seconds}")
    hosts = hosts_of(target)
    credentials = Credentials(access.or_environment(), hosts)
    address = Address(hosts[0])
    endpoint = host_and_port(address)
    timeout = None if math.isinf(timeout_seconds) else timeout_seconds
    with credentials.open_channel(address) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=timeout
            )
        except grpc.RpcError as error:
            failure: PackhorseError | None = None
            if endpoint is not None:
                host, port, server_name = endpoint
                failure = refusal_of(host, port, server_name, credentials.access, uses_tls=credentials.uses_tls)
            raise failure or exception_of(error, target) from None
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
