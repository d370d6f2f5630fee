"""Where preparing runs: in local processes, or on a cluster.

Owns that choice; leaves processes to `packhorse.jobs` and a cluster to `_ray`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from packhorse.jobs import Engine
from packhorse.jobs import open_engine as open_processes
from packhorse.prepare._ray import open_ray


@contextmanager
def open_engine(kind: Literal["processes", "ray"], *, workers: int, ray_address: str | None) -> Iterator[Engine]:
    """Gives an engine, and ends its processes afterwards.

    Args:
        kind: which.
        workers: local processes, at least 1, which is none but this one.
        ray_address: of the cluster, see `open_ray`.

    Raises:
        ChildProcessError: inside, processes died or machines were lost.
    """
    try:
        with open_ray(ray_address) if kind == "ray" else open_processes(workers) as engine:
            yield engine
    except ChildProcessError as error:
        raise ChildProcessError(f"{error}. With --resume, what is done is kept") from None
