"""Where a long job runs: in threads, in local processes, or on a cluster.

Owns that choice and what goes together in it; leaves threads to `_threads`, processes to `engines` and a cluster to
`_ray`.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, get_args

from packhorse.jobs._ray import open_ray
from packhorse.jobs._threads import open_threads
from packhorse.jobs.engines import Engine, open_engine

EngineKind = Literal["processes", "ray"]
"""Where the work is done."""

AnyEngineKind = Literal["threads", "processes", "ray"]
"""The same for a job whose tasks release the interpreter."""


def check_engine(
    kind: AnyEngineKind,
    *,
    workers: int | None,
    ray_address: str | None,
    kinds: Sequence[str] = get_args(EngineKind),
) -> None:
    """Refuses an engine that is none, and what does not go with it.

    Example:
        >>> check_engine("ray", workers=2, ray_address=None)
        Traceback (most recent call last):
        ValueError: workers are of this machine: leave out --workers, as a Ray cluster has its own

    Args:
        kind: which.
        workers: as the user named them.
        ray_address: likewise.
        kinds: those that the job knows.

    Raises:
        ValueError: the message names the argument.
    """
    if kind not in kinds:
        raise ValueError(f"engine must be one of {', '.join(kinds)}, got {kind!r}")
    if kind == "ray" and workers is not None:
        raise ValueError("workers are of this machine: leave out --workers, as a Ray cluster has its own")
    if kind != "ray" and ray_address is not None:
        raise ValueError(f"ray_address {ray_address!r} is a Ray cluster's, and engine is {kind!r}: add --engine ray")


@contextmanager
def open_chosen_engine(kind: AnyEngineKind, *, workers: int, ray_address: str | None) -> Iterator[Engine]:
    """Gives an engine, and ends its processes afterwards.

    Example:
        >>> with open_chosen_engine("processes", workers=1, ray_address=None) as engine:
        ...     list(engine.map(abs, [-3, 2]))
        [3, 2]

    Args:
        kind: which.
        workers: threads or local processes, at least 1, which is none but this one.
        ray_address: of the cluster, see `open_ray`.

    Raises:
        ChildProcessError: inside, processes died or machines were lost.
    """
    try:
        with _opened(kind, workers, ray_address) as engine:
            yield engine
    except ChildProcessError as error:
        raise ChildProcessError(f"{error}. With --resume, what is done is kept") from None


def _opened(kind: AnyEngineKind, workers: int, ray_address: str | None) -> AbstractContextManager[Engine]:
    if kind == "ray":
        return open_ray(ray_address)
    return open_threads(workers) if kind == "threads" and workers > 1 else open_engine(workers)
