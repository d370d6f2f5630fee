"""`ask_health`: whether a server says that it serves.

Leaves the steps to a server that does not answer to `doctor`.
"""

import math

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from packhorse.client import Access
from packhorse.client.transport.access import NO_ACCESS
from packhorse.client.transport.addresses import as_one_address, hosts_of
from packhorse.client.transport.credentials import Credentials
from packhorse.client.transport.grpc_errors import exception_of
from packhorse.parameters import parameter
from packhorse.proof.activity import refusal_at


def ask_health(target: str, *, access: Access = NO_ACCESS, timeout_seconds: float, service: str = "") -> str:
    """Returns a server's health: SERVING, NOT_SERVING or UNKNOWN.

    NOT_SERVING means that the server starts or drains, makes no blocks, or has no dataset that it can serve. The
    request sends no token, and needs none.

    Example:
        >>> ask_health("127.0.0.1:9", timeout_seconds=0.2)  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        packhorse.client.errors.ServerUnavailableError: ...

    Args:
        target: address of one server, as `connect` takes it.
        access: certificates; by default those of the environment.
        timeout_seconds: how long to wait for an answer; math.inf for no limit.
        service: name of the gRPC service whose health is asked for; empty for the process.

    Raises:
        AccessDeniedError: certificates do not fit.
        ServerUnavailableError: no server answers in time, or nobody listens.
        ValueError: a file cannot be read, or timeout_seconds is out of range.
    """
    if math.isnan(timeout_seconds) or timeout_seconds <= 0:
        raise ValueError(parameter("timeout_seconds") + f" must be above 0, got {timeout_seconds}")
    hosts = hosts_of(target)
    credentials = Credentials(access.or_environment(), hosts)
    address = as_one_address(hosts[0])
    timeout = None if math.isinf(timeout_seconds) else timeout_seconds
    with credentials.open_channel(address) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=timeout
            )
        except grpc.RpcError as error:
            raise refusal_at(address, credentials) or exception_of(error, target, address.proxy) from None
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
