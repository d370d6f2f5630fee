"""An S3 server on loopback, moto's, in threads of this process: it ends with the fixture, and never outlives it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from moto.server import ThreadedMotoServer

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret-of-the-tests"}


@dataclass(frozen=True)
class Bucket:
    """A bucket of its own, by which `s3://` URLs are served."""

    name: str
    port: int

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    @property
    def environment(self) -> dict[str, str]:
        """What makes any process find the server."""
        return {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}", "AWS_DEFAULT_REGION": "us-east-1"}

    @property
    def storage_options(self) -> dict[str, Any]:
        """The same for s3fs: a fork server that is older than the environment does not have it."""
        return {
            "key": CREDENTIALS["AWS_ACCESS_KEY_ID"],
            "secret": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{self.port}", "region_name": "us-east-1"},
        }

    @property
    def client(self) -> Any:
        """boto3's."""
        return _client(self.port)

    def put(self, key: str, content: bytes | Path) -> str:
        """Puts an object and returns its URL."""
        body = content.read_bytes() if isinstance(content, Path) else content
        self.client.put_object(Bucket=self.name, Key=key, Body=body)
        return f"{self.url}/{key}"

    def put_folder(self, key: str, folder: Path) -> str:
        """Puts every file below a folder, and returns the URL of all."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{key}/{path.relative_to(folder)}", path)
        return f"{self.url}/{key}"


@cache
def _client(port: int) -> Any:
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        region_name="us-east-1",
    )


@contextmanager
def s3_server(port: int = 0) -> Iterator[int]:
    """Gives the port of a server that has nothing."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    try:
        yield server.get_host_and_port()[1]
    finally:
        server.stop()
