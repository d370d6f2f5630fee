"""The server's options. The command line fills them in, from flags or PACKHORSE_… variables."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeConfig:
    """How a server runs.

    Raises:
        ValueError: an option is out of range; the message names the flag.
    """

    data_root: Path
    """Folder of prepared folders."""
    listen: str = "127.0.0.1:50051"
    """HOST:PORT (port 0 for a free one) or unix:PATH."""
    metrics_listen: str | None = None
    """HOST:PORT of /metrics; None for none."""
    grace_seconds: float = 30.0
    """How long streams may go on after SIGTERM."""
    max_streams: int = 4096
    """Streams open at once; more are refused with a retry delay."""

    def __post_init__(self) -> None:
        """Checks every option."""
        if not self.listen.startswith("unix:"):
            split_address("--listen", self.listen)
        if self.metrics_listen is not None:
            split_address("--metrics-listen", self.metrics_listen)
        if not self.grace_seconds >= 0:
            raise ValueError(f"--grace-seconds must be at least 0, got {self.grace_seconds}")
        if self.max_streams < 1:
            raise ValueError(f"--max-streams must be at least 1, got {self.max_streams}")


def split_address(flag: str, address: str) -> tuple[str, int]:
    """Splits HOST:PORT; a ValueError naming the flag where it is something else."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{flag} must be HOST:PORT, e.g. 127.0.0.1:50051, got {address!r}")
    return host.strip("[]"), int(port)
