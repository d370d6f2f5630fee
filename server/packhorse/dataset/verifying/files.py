"""Comparing the files of a prepared folder with their checksums, and its groups with their classes.

Leaves lengths, compared with the data, to `lengths`. Opening the folder, with the checks that it must pass to be
served, is in `packhorse.dataset.load`.
"""

from concurrent.futures import ThreadPoolExecutor, as_completed

import numpy as np

from packhorse.dataset.arrays import map_array
from packhorse.dataset.errors import short_path
from packhorse.dataset.layout import CLASSES, MANIFEST
from packhorse.dataset.load import PreparedDataset
from packhorse.dataset.plain_files import sha256_of
from packhorse.jobs import Progress

_GROUPS_AT_ONCE = 1 << 20
"""Groups that are held in memory together."""


def verify_files(dataset: PreparedDataset, progress: Progress) -> list[str]:
    """Compares every file that has a checksum with it, one thread for each, and groups with their classes.

    Example:
        >>> from packhorse.dataset import open_prepared
        >>> from packhorse.jobs import show_progress
        >>> with show_progress(quiet=True) as progress:
        ...     verify_files(open_prepared("datasets/corpus", check_pool=False), progress)
        []

    Args:
        dataset: opened with `check_pool=False`, which leaves the array files to this function.
        progress: shows the bytes that were read.

    Returns:
        A line for each file that does not match; if all match, a line for the first sequence or group that is larger
        than its class; empty if nothing is wrong.
    """
    checksums = dataset.manifest.checksums
    paths = [dataset.path / name for name in sorted(checksums)]
    num_bytes = sum(path.stat().st_size for path in paths)
    with progress.task("comparing files", num_bytes, "bytes") as advance, ThreadPoolExecutor(len(paths)) as threads:
        path_of = {threads.submit(sha256_of, path): path for path in paths}
        lines = []
        for future in as_completed(path_of):
            path = path_of[future]
            advance(path.stat().st_size)
            if future.result() != checksums[path.name]:
                lines.append(
                    f"{short_path(path)} does not match its checksum in {MANIFEST}: it was truncated or altered"
                )
    return sorted(lines) or _over_class(dataset)


def _over_class(dataset: PreparedDataset) -> list[str]:
    """Returns a line for the first group that takes more of a bin than its class; only resources have classes.

    Opening the folder has checked that each template's classes fit into a bin. If each group fits into its class too,
    every bin keeps within its caps.
    """
    manifest, groups, plan = dataset.manifest, dataset.groups, dataset.plan
    if groups is None or groups.resources is None:
        return []
    classes = map_array(dataset.path / CLASSES, "int64", (manifest.num_rooms, len(manifest.capacities)))
    is_capped = np.array([resource.cap is not None for resource in manifest.resources])
    class_ends = np.cumsum(plan.counts)  # in the pool, which ascends by class
    for first in range(0, len(dataset.pool), _GROUPS_AT_ONCE):
        numbers = dataset.pool[first : first + _GROUPS_AT_ONCE].astype(np.int64)
        members, sizes = groups.members_of(numbers)  # indices of members, group after group; members of each group
        starts = np.cumsum(sizes) - sizes  # of each group in `members`
        rooms = np.add.reduceat(groups.rooms.room(groups.members[members, 1]), starts)  # sums over each group
        amounts = np.add.reduceat(groups.resources[members].astype(np.int64), starts)[:, is_capped]
        takes = np.concatenate((rooms[:, None], amounts), axis=1)
        planned = classes[np.searchsorted(class_ends, np.arange(first, first + len(numbers)), side="right")]
        too_large = np.flatnonzero((takes > planned).any(axis=1))
        if len(too_large):
            group = too_large[0]
            return [
                f"sequence {groups.members[members[starts[group]], 0]} takes {takes[group].tolist()} of a bin, and is "
                f"planned as {planned[group].tolist()}: its bin may be over a cap; prepare the dataset again"
            ]
    return []
