"""What this process uses of the machine: processor time, memory and open files.

Owns descriptors, and this process's numbers in /proc. Leaves the container's limits to `packhorse.jobs.control_groups`,
the metrics of these numbers to `watching.process_metrics`, and the number of threads to `lanes`.
"""

import errno
import logging
import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

from packhorse.jobs import memory_limit

_LOG = logging.getLogger(__name__)

OWN_FILES = 128
"""Descriptors that the process itself needs, beside those for clients: libraries, datasets, what threads wait with."""


def allow_descriptors(wanted: int) -> None:
    """Raises the limit of open files as far as this process may; warns if it is below `wanted` + OWN_FILES.

    `wanted` are the descriptors for clients. Shells and service managers start processes with a limit of about 1,024,
    and let each process raise its own.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < wanted + OWN_FILES:
        _LOG.warning(
            "this process may have %d files and connections open, and --max-streams needs up to %d: raise the limit "
            "(ulimit -Hn, LimitNOFILE= of systemd, docker run --ulimit nofile=), or lower --max-streams",
            hard,
            wanted + OWN_FILES,
        )


def most_connections(wanted: int, kept: int) -> int:
    """Returns how many connections may be open, 1 to `wanted`, so that enough descriptors remain.

    `kept` remain for connections that are not counted here, and OWN_FILES for the process itself. If more than
    half of OWN_FILES are open already, the process gets as many as are open and another half of OWN_FILES.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    own = max(OWN_FILES, len(open_descriptors()) + OWN_FILES // 2)
    return max(1, min(wanted, soft - kept - own))


def open_descriptors() -> list[int]:
    """Returns the open descriptors, including the one that lists them; empty if the system does not list them.

    If no descriptor is left to list them with, returns every number below the limit.
    """
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError as error:
        return list(range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])) if error.errno == errno.EMFILE else []


@dataclass(frozen=True, slots=True)
class Resources:
    """What this process uses now. Numbers that the system does not know are 0."""

    processor_seconds: float = 0.0
    """Processor time of all its threads since it began."""
    memory_bytes: int = 0
    """Memory of its own. Mapped files, such as pools, do not count: the kernel drops them when memory is short."""
    memory_limit_bytes: int = 0
    """Memory of its container, or else of the machine; beyond it the kernel ends a process. Other processes use the
    same memory."""
    open_files: int = 0
    """Open files and connections."""
    most_open_files: int = 0
    """Limit of its open files and connections; 0 also if there is none."""

    @classmethod
    def now(cls) -> "Resources":
        """Returns what this process uses now."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(
            processor_seconds=time.process_time(),
            memory_bytes=_own_memory_bytes(),
            memory_limit_bytes=memory_limit(),
            open_files=len(open_descriptors()),
            most_open_files=0 if soft == resource.RLIM_INFINITY else soft,
        )


def _own_memory_bytes() -> int:
    """Returns the memory of this process that is not of mapped files, from /proc; 0 if the system does not tell it."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    found = (line.partition(":") for line in lines)  # such as "RssAnon:	  123 kB", of 1,024 bytes each
    return sum(int(value.split()[0]) << 10 for name, _, value in found if name in ("RssAnon", "RssShmem"))
