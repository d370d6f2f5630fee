"""What a container lets this process use: the processors and the memory of its control groups.

Owns reading control groups and files below /proc. Leaves what the process uses to `packhorse.server.base.machine`.
"""

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
"""Where Linux mounts control groups."""

OWN_GROUPS = Path("/proc/self/cgroup")
"""Where Linux lists this process's control groups."""


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
    quota = min(quotas(_text_of(OWN_GROUPS), MOUNT), default=cores)
    return max(1, min(cores, math.ceil(quota)))


def quotas(groups: str, root: Path) -> list[float]:
    """Returns the quotas, in processors, of control groups and their parents.

    Args:
        groups: the text of /proc/self/cgroup.
        root: the folder where control groups are mounted.
    """
    found = []
    for version, folder in _folders_of(groups, "cpu", root):
        if version == 2:
            quota, _, period = _text_of(folder / "cpu.max").partition(" ")
        else:
            quota, period = (_text_of(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        try:
            cores = int(quota) / int(period)
        except (ValueError, ZeroDivisionError):  # "max", or no file
            continue
        if cores > 0:  # version 1 has -1 for no quota
            found.append(cores)
    return found


def memory_limit() -> int:
    """Returns how many bytes of memory this process and its control groups may have.

    Example:
        >>> 0 < memory_limit() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        True
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *memory_limits(_text_of(OWN_GROUPS), MOUNT)])


def memory_limits(groups: str, root: Path) -> list[int]:
    """Returns the limits, in bytes, of control groups and their parents.

    Args:
        groups: the text of /proc/self/cgroup.
        root: the folder where control groups are mounted.
    """
    names = {1: "memory.limit_in_bytes", 2: "memory.max"}
    limits = [_text_of(folder / names[version]).strip() for version, folder in _folders_of(groups, "memory", root)]
    return [int(limit) for limit in limits if limit.isdecimal() and int(limit)]  # others: "max", 0, or no file


def _text_of(path: Path) -> str:
    """Returns the text of a file below /proc or /sys; empty if it cannot be read."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _folders_of(groups: str, controller: str, root: Path) -> Iterator[tuple[int, Path]]:
    """Yields the version (1 or 2) and the folder of each group that may limit a controller, such as "memory".

    `groups` is the text of /proc/self/cgroup. A line is `NUMBER:CONTROLLERS:PATH`; version 2 has number 0 and one tree
    for all controllers. In a container the path may not exist below the mount, so the root's folder comes first.
    """
    for line in groups.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            version, top = 2, root
        elif controller in controllers.split(","):
            version = 1
            mounted = (root / controller, root / controllers)  # such as cpu, or cpu,cpuacct
            top = next((each for each in mounted if each.is_dir()), root)
        else:
            continue
        yield version, top
        group = top / path.lstrip("/")
        while group != top:
            yield version, group
            group = group.parent
