"""How tokenizing is carried out: on which engine, in how many processes, with how many threads each.

Leaves the tasks to `_work`.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple, Self

from packhorse.formats.files import as_path
from packhorse.formats.object_store import is_url
from packhorse.jobs import Execution, available_cores
from packhorse.parameters import parameter

_MANY_BYTES = 1 << 26
"""Size of the input from which several processes save more time than they take to start."""


def check_execution(execution: Execution) -> None:
    """Raises a ValueError if fields are given that have no effect on tokenizing."""
    execution.refuse("tokenizing", time_limit_seconds=None)  # this field may only be None
    if execution.engine == "threads":
        raise ValueError(parameter("engine") + " must be one of processes, ray, got 'threads'")


def paths_of(inputs: Sequence[str | os.PathLike[str]], execution: Execution) -> list[str]:
    """Returns inputs as paths; absolute ones for Ray, because a cluster's processes have another working directory."""
    paths = list(map(as_path, inputs))
    if execution.engine == "ray":
        return [path if is_url(path) else os.path.abspath(path) for path in paths]
    return paths


class Processes(NamedTuple):
    """The local processes for tokenizing; one means this process."""

    workers: int
    """Number of the processes."""
    threads: int | None
    """Threads of each; None if everything runs in this process, whose threads are not changed."""

    @classmethod
    def of(cls, execution: Execution, size_bytes: int, num_parts: int) -> Self:
        """Returns the processes for an input of a size; with Ray each task has one processor."""
        if execution.engine == "ray":  # the cluster has the workers
            return cls(workers=1, threads=1)
        cores = available_cores()
        workers = execution.workers or (cores if size_bytes >= _MANY_BYTES else 1)
        workers = max(1, min(workers, num_parts))
        return cls(workers=workers, threads=None if workers == 1 else max(1, cores // workers))
