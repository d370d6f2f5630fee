"""The control groups (cgroups) that this process is in, by which containers are given their share of a machine.

Owns finding their folders, of both versions; leaves what is read there to whoever asks: `cores`, `resources`.
"""

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
