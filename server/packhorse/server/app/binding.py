"""Binding a gRPC server to the address that `serve --listen` names: `bind`, and the check of a Unix socket's path."""

import socket
from pathlib import Path

import grpc

from packhorse.parameters import parameter
from packhorse.server.access.tls import Certificates


def bind(server: grpc.aio.Server, listen: str, certificates: Certificates | None) -> str:
    """Listens on HOST:PORT, with TLS if there are certificates, or on unix:PATH; returns the real address.

    Raises:
        OSError: the address is in use or cannot be listened on.
    """
    is_unix = listen.startswith("unix:")
    if is_unix:
        check_socket(Path(listen.removeprefix("unix:")))
    try:
        if certificates is None or is_unix:
            port = server.add_insecure_port(listen)
        else:
            port = server.add_secure_port(listen, certificates.grpc_credentials())
    except RuntimeError:
        raise OSError(parameter("listen") + f" {listen}: the address is in use or cannot be listened on") from None
    host, _, _ = listen.rpartition(":")
    return listen if is_unix else f"{host}:{port}"


def check_socket(path: Path) -> None:
    """Raises an OSError if a server listens at a path, or another file is there: gRPC would silently replace it."""
    if not path.exists():
        return
    if path.is_socket():
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:  # left by a server that was killed
                return
    raise OSError(parameter("listen") + f" unix:{path}: the path is in use")
