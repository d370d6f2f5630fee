"""Limits of the machine and container, and usage of this process: processors, memory and open files.

Owns reading /proc and control groups. Leaves the metrics of these numbers to `watching.connections`, and the number of
threads to `lanes`.
"""

import errno
import logging
import math
import os
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LOG = logging.getLogger(__name__)

MOUNT = Path("/sys/fs/cgroup")
"""Where Linux mounts control groups."""

OWN_FILES = 128
"""Descriptors that the process itself needs, beside those for clients: libraries, datasets, what threads wait with."""

_UNLIMITED_BYTES = 1 << 60
"""A limit from here on means none: version 1 of control groups then writes a number near 2^63."""


def available_cores() -> int:
    """Returns how many processors this process may keep busy, at least 1.

    That is the smaller of its affinity and its control groups' quotas. A quota of one and a half counts as two.

    Example:
        >>> 1 <= available_cores() <= (os.cpu_count() or 1)
        True
    """
    if sys.platform != "linux":
        return os.cpu_count() or 1
    cores = len(os.sched_getaffinity(0))
    quota = min(quotas(_text_of("/proc/self/cgroup"), MOUNT), default=math.inf)
    return max(1, min(cores, math.ceil(quota) if math.isfinite(quota) else cores))


def quotas(groups: str, root: Path) -> list[float]:
    """Returns the quotas, in processors, of control groups and their parents.

    Args:
        groups: the text of /proc/self/cgroup.
        root: the folder where control groups are mounted.
    """
    all_quotas = []
    for version, folder in _folders_of(groups, "cpu", root):
        if version == 2:
            quota, _, period = _text_of(folder / "cpu.max").partition(" ")
        else:
            quota, period = (_text_of(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        try:
            all_quotas.append(int(quota) / int(period))
        except (ValueError, ZeroDivisionError):  # "max", or no file
            continue
    return [quota for quota in all_quotas if quota > 0]


def memory_limit(groups: str, machine: str, root: Path) -> int:
    """Returns how many bytes of memory this process and its control groups may have; 0 if unknown.

    Args:
        groups: the text of /proc/self/cgroup.
        machine: the text of /proc/meminfo.
        root: the folder where control groups are mounted.
    """
    names = {1: "memory.limit_in_bytes", 2: "memory.max"}
    limits = [_text_of(folder / names[version]).strip() for version, folder in _folders_of(groups, "memory", root)]
    limits.extend(str(kilobytes << 10) for kilobytes in _kilobytes(machine, "MemTotal"))
    numbers = (int(limit) for limit in limits if limit.isdecimal())
    return min((number for number in numbers if 0 < number < _UNLIMITED_BYTES), default=0)


def allow_descriptors(wanted: int) -> None:
    """Raises the limit of open files as far as this process may; warns if it is below `wanted` + OWN_FILES.

    Shells and service managers start processes with a limit of about 1,024, and let each process raise its own.
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
    """Returns how many connections may be open, at most `wanted`, so that enough descriptors remain.

    These are `kept` for other connections, and OWN_FILES, or more if the process has more files open by now.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, soft - kept - max(OWN_FILES, len(open_descriptors()) + OWN_FILES // 2)))


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
            memory_bytes=sum(_kilobytes(_text_of("/proc/self/status"), "RssAnon", "RssShmem")) << 10,
            memory_limit_bytes=memory_limit(_text_of("/proc/self/cgroup"), _text_of("/proc/meminfo"), MOUNT),
            open_files=len(open_descriptors()),
            most_open_files=0 if soft == resource.RLIM_INFINITY else soft,
        )


def _folders_of(listed: str, controller: str, root: Path) -> Iterator[tuple[int, Path]]:
    """Yields the version (1 or 2) and the folder of each group that may limit a controller, such as "memory".

    `listed` is the text of /proc/self/cgroup. A line is `NUMBER:CONTROLLERS:PATH`; version 2 has number 0 and one tree
    for all controllers. In a container the path may not exist below the mount, so the root's folder comes first.
    """
    for line in listed.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            version, top = 2, root
        elif controller in controllers.split(","):
            version = 1
            top = next((each for each in (root / controller, root / controllers) if each.is_dir()), root)
        else:
            continue
        within = Path(path.lstrip("/"))
        for folder in (top, *(top / part for part in (within, *within.parents) if part != Path(part.anchor or "."))):
            yield version, folder


def _text_of(path: Path | str) -> str:
    """Returns the text of a file below /proc or /sys; empty if it cannot be read."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _kilobytes(text: str, *names: str) -> list[int]:
    """Returns the sizes after some names in a text such as /proc/meminfo, in its order: `MemTotal: 123 kB` → 123."""
    lines = (line.partition(":") for line in text.splitlines())
    return [int(value.split()[0]) for name, _, value in lines if name in names]
