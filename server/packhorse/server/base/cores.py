"""What the machine and the container allow: processors, control groups, and open files.

Owns what Linux says of quotas and limits; leaves what threads are made of
them to `lanes`.
"""

import logging
import math
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
"""Where Linux shows them."""


def groups_of(listed: str, controller: str, root: Path = MOUNT) -> Iterator[tuple[int, Path]]:
    """Yields the version (1 or 2) and the folder of each group that a controller's limits may be in, the root first.

    Args:
        listed: the groups as /proc/self/cgroup lists them.
        controller: "cpu" or "memory".
        root: where control groups are mounted.
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


def text_of(path: Path | str) -> str:
    """Returns what a file of the kernel's says; nothing where there is none."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def available_cores() -> int:
    """Returns how many processors this process may keep busy, at least 1.

    That is as many as it may run on, or fewer where its control group, or one above it, has a quota of processor time.
    A quota of one and a half processors counts as two.

    Example:
        >>> 1 <= available_cores() <= (os.cpu_count() or 1)
        True
    """
    if sys.platform != "linux":
        return os.cpu_count() or 1
    cores = len(os.sched_getaffinity(0))
    quota = min(quotas(text_of("/proc/self/cgroup"), MOUNT), default=math.inf)
    return max(1, min(cores, math.ceil(quota) if math.isfinite(quota) else cores))


def quotas(groups: str, root: Path) -> list[float]:
    """Returns the quotas of processor time that hold for some control groups and those above, in processors.

    Args:
        groups: as /proc/self/cgroup lists them.
        root: where control groups are mounted.
    """
    readers = {1: _quota_v1, 2: _quota_v2}
    found = (readers[version](folder) for version, folder in groups_of(groups, "cpu", root))
    return [quota for quota in found if quota is not None and quota > 0]


def _quota_v2(folder: Path) -> float | None:
    quota, _, period = text_of(folder / "cpu.max").partition(" ")
    return _ratio(quota, period)


def _quota_v1(folder: Path) -> float | None:
    return _ratio(text_of(folder / "cpu.cfs_quota_us"), text_of(folder / "cpu.cfs_period_us"))


def _ratio(quota: str, period: str) -> float | None:
    """Returns the processors that a quota in a period makes; None where there is none ("max", -1, no file)."""
    try:
        return int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None


_LOG = logging.getLogger(__name__)

OWN = 128
"""Files of the process itself: libraries, datasets, what threads wait with."""


def allow_descriptors(wanted: int) -> None:
    """Raises the limit as far as this process may, and says so in the log where that is less than it wants.

    Shells and service managers start processes with 1,024 or so, for programs that know no larger numbers, and let
    each raise it.

    Args:
        wanted: connections at once, and files beside OWN.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < wanted + OWN:
        _LOG.warning(
            "this process may have %d files and connections open, and with --max-streams wants up to %d: raise the "
            "limit (ulimit -Hn, LimitNOFILE= of systemd, docker run --ulimit nofile=), or lower --max-streams",
            hard,
            wanted + OWN,
        )
