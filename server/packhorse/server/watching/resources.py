"""What this process takes of its machine, beside the limits that would end it: memory, files, processor time.

Owns where Linux says so, and how often it is asked; elsewhere what it does not know is 0. Leaves connections to
`connections`, and the limit of files to `base.cores`.
"""

import asyncio
import resource
import time
from dataclasses import dataclass
from pathlib import Path

from packhorse.server.base.cores import MOUNT, groups_of, text_of
from packhorse.server.watching.connections import Connections, open_descriptors
from packhorse.server.watching.metrics import Metrics
from packhorse.v1 import packing_pb2 as pb

_EVERY_SECONDS = 2.0

_SHARE = 0.01
"""Of the time, at most, goes into looking: thousands of connections take tens of milliseconds."""

_UNLIMITED_BYTES = 1 << 60
"""Version 1 of control groups writes a number near 2^63 where there is no limit."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What a process takes now."""

    processor_seconds: float
    """Since it began, of all its threads."""
    memory_bytes: int
    """That are its own. Mapped files, such as pools, do not count: the kernel drops them when memory is short."""
    memory_limit_bytes: int
    """Of its container, or of the machine: beyond it the kernel ends a process. Others may take from it as well."""
    open_files: int
    """Files and connections."""
    most_open_files: int
    """Beyond which neither a connection nor a file can be opened."""

    @classmethod
    def now(cls) -> "Resources":
        """Returns what this process takes."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(
            processor_seconds=time.process_time(),
            memory_bytes=sum(_kilobytes(text_of("/proc/self/status"), "RssAnon", "RssShmem")) << 10,
            memory_limit_bytes=memory_limit(text_of("/proc/self/cgroup"), text_of("/proc/meminfo"), MOUNT),
            open_files=len(open_descriptors()),
            most_open_files=0 if soft == resource.RLIM_INFINITY else soft,
        )


class Measuring:
    """Looks at this process every few seconds, and keeps what it saw.

    Args:
        metrics: move with every look.
        connections: to this process.
    """

    def __init__(self, metrics: Metrics, connections: Connections) -> None:
        self._metrics = metrics
        self._connections = connections
        self._seen = Resources(0.0, 0, 0, 0, 0)
        self._bytes_without_request = 0

    async def go_on(self) -> None:
        """Looks, in a thread, until it is cancelled."""
        while True:
            began = time.monotonic()
            await asyncio.to_thread(self.look)
            await asyncio.sleep(max(_EVERY_SECONDS, (time.monotonic() - began) / _SHARE))

    def look(self) -> None:
        """Looks once."""
        metrics, connections = self._metrics, self._connections
        connections.look()
        before, now = self._seen, Resources.now()
        metrics.processor_seconds.inc(now.processor_seconds - before.processor_seconds)
        metrics.memory.set(now.memory_bytes)
        metrics.memory_limit.set(now.memory_limit_bytes)
        metrics.open_files.set(now.open_files)
        metrics.open_files_limit.set(now.most_open_files)
        metrics.connections.set(connections.num_open)
        metrics.connections_without_request.set(connections.num_without_request)
        metrics.bytes_without_request.inc(connections.bytes_without_request - self._bytes_without_request)
        self._seen, self._bytes_without_request = now, connections.bytes_without_request

    def activity(self) -> pb.ProcessActivity:
        """Returns what the last look saw."""
        seen, connections = self._seen, self._connections
        return pb.ProcessActivity(
            processor_seconds=seen.processor_seconds,
            memory_bytes=seen.memory_bytes,
            memory_limit_bytes=seen.memory_limit_bytes,
            open_files=seen.open_files,
            most_open_files=seen.most_open_files,
            num_connections=connections.num_open,
            num_connections_without_request=connections.num_without_request,
            bytes_without_request=connections.bytes_without_request,
        )


def memory_limit(groups: str, machine: str, root: Path) -> int:
    """Returns how many bytes of memory this process and those in its control groups may have; 0 where unknown.

    Args:
        groups: as /proc/self/cgroup lists them.
        machine: what /proc/meminfo says.
        root: where control groups are mounted.
    """
    names = {1: "memory.limit_in_bytes", 2: "memory.max"}
    limits = [text_of(folder / names[version]).strip() for version, folder in groups_of(groups, "memory", root)]
    limits.extend(str(kilobytes << 10) for kilobytes in _kilobytes(machine, "MemTotal"))
    numbers = (int(limit) for limit in limits if limit.isdecimal())
    return min((number for number in numbers if 0 < number < _UNLIMITED_BYTES), default=0)


def _kilobytes(text: str, *names: str) -> list[int]:
    """Returns the sizes that a file of the kernel's gives for some names, in its order."""
    lines = (line.partition(":") for line in text.splitlines())
    return [int(value.split()[0]) for name, _, value in lines if name in names]
