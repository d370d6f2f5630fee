"""How many processors a server may keep busy: its container's share of the machine, not the machine.

Owns where Linux says so; leaves what threads are made of it to `lanes`.
"""

import math
import os
import sys
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


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
    quota = min(quotas(_text("/proc/self/cgroup"), _CGROUPS), default=math.inf)
    return max(1, min(cores, math.ceil(quota) if math.isfinite(quota) else cores))


def quotas(groups: str, root: Path) -> list[float]:
    """Returns the quotas of processor time that hold for some control groups and those above, in processors.

    Args:
        groups: as /proc/self/cgroup lists them.
        root: where control groups are mounted.
    """
    found = []
    for line in groups.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            read, top = _quota_v2, root
        elif "cpu" in controllers.split(","):
            read, top = _quota_v1, next((each for each in (root / "cpu", root / controllers) if each.is_dir()), root)
        else:
            continue
        within = Path(path.lstrip("/"))
        for folder in (top, *(top / part for part in (within, *within.parents) if part != Path(part.anchor or "."))):
            quota = read(folder)
            if quota is not None and quota > 0:
                found.append(quota)
    return found


def _quota_v2(folder: Path) -> float | None:
    quota, _, period = _text(folder / "cpu.max").partition(" ")
    return _ratio(quota, period)


def _quota_v1(folder: Path) -> float | None:
    return _ratio(_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us"))


def _ratio(quota: str, period: str) -> float | None:
    """Returns the processors that a quota in a period makes; None where there is none ("max", -1, no file)."""
    try:
        return int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None


def _text(path: Path | str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
