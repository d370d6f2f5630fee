"""Where a long job runs: in threads, in local processes, or on a cluster.

Owns that choice and what goes together in it; leaves threads to `_threads`, processes to `engines` and a cluster to
`_ray`.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, get_args

from packhorse.jobs._ray import open_ray
from packhorse.jobs._threads import open_threads
from packhorse.jobs.engines import Engine, open_engine

EngineKind = Literal["processes", "ray"]
"""Where the work is done."""

AnyEngineKind = Literal["threads", "processes", "ray"]
"""The same for a job whose tasks release the interpreter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How a long job is done: where, by how many, and whether it goes on with what was interrupted.

    Example:
        >>> Execution(engine="ray", workers=2)
        Traceback (most recent call last):
        ValueError: workers are of this machine: leave workers out, as a Ray cluster has its own

    Raises:
        ValueError: a field is out of range, or does not go with the engine; names it.
    """

    engine: AnyEngineKind | None = None
    """Where the work is done: "threads" of this process (preparing alone, where it is the default), "processes" of this
    machine (the default for other work), or "ray", a cluster whose machines share the files."""
    workers: int | None = None
    """Threads or processes. By default as many as the work is worth; a cluster has its own number."""
    ray_address: str | None = None
    """Of the cluster. By default that of the environment variable RAY_ADDRESS, or else a cluster of this machine for as
    long as the work takes."""
    time_limit_seconds: float | None = None
    """A safety net for planning, 60 s by default. A packer that improves its plan step by step ends after a fixed
    amount of work; where the limit ends it before, the manifest says so, and the next run may plan otherwise."""
    resume: bool = False
    """Go on with what an interrupted call finished. It is refused where input or options are others than then. Without
    it, the work starts over."""
    progress: bool = True
    """Whether stderr shows how far it is: bars on a terminal, a line every few seconds elsewhere."""

    def __post_init__(self) -> None:
        """Checks every field."""
        kinds = get_args(AnyEngineKind)
        if self.engine not in (None, *kinds):
            raise ValueError(f"engine must be one of {', '.join(kinds)}, got {self.engine!r}")
        if self.workers is not None and (
            isinstance(self.workers, bool) or not isinstance(self.workers, Integral) or self.workers < 1
        ):
            raise ValueError(f"workers must be an integer of at least 1, got {self.workers!r:.60}")
        if self.engine == "ray" and self.workers is not None:
            raise ValueError("workers are of this machine: leave workers out, as a Ray cluster has its own")
        if self.engine != "ray" and self.ray_address is not None:
            raise ValueError(f"ray_address {self.ray_address!r} is a Ray cluster's: choose engine 'ray'")

    def refuse(self, work: str, **fields: object) -> None:
        """Refuses fields that have no effect on some work: those that are not as given here."""
        for name, plain in fields.items():
            if getattr(self, name) not in (None, plain):
                raise ValueError(f"{name} {getattr(self, name)!r} has no effect on {work}: leave it out")


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
