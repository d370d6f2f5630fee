"""How many processors a server may keep busy: its container's share of the machine, not the machine.

Owns what Linux says of quotas; leaves where its control groups lie to `control_groups`, and what threads are made of
them to `lanes`.
"""

import math
import os
import sys
from pathlib import Path

from packhorse.server.base.control_groups import MOUNT, groups_of, text_of


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
