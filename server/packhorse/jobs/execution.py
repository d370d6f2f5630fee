"""`Execution`: how a user wants a long job to run.

Owns the fields, and their checks but for the time limit, which `packing` checks. Running tasks is in `engines`.
"""

from dataclasses import dataclass
from numbers import Integral
from typing import Literal, get_args

from packhorse.parameters import parameter

EngineKind = Literal["processes", "ray"]
"""Kind of engine for a job whose tasks are plain Python: local processes, or a Ray cluster."""

AnyEngineKind = Literal["threads", "processes", "ray"]
"""Kind of engine for a job whose tasks release the interpreter lock, so that threads help too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How a long job runs: on which engine, with how many workers, and whether it resumes interrupted work.

    Example:
        >>> Execution(engine="ray", workers=2)
        Traceback (most recent call last):
        ValueError: workers are of this machine, and a Ray cluster has its own: leave workers out

    Raises:
        ValueError: a field is out of range, or does not fit the engine; the message names it.
    """

    engine: AnyEngineKind | None = None
    """What does the work: "threads" of this process (the default of `prepare`, and only there), "processes" on this
    machine (the default elsewhere), or "ray", a cluster whose machines share the files.
    """
    workers: int | None = None
    """Number of threads or processes. By default it depends on the amount of work; a cluster has its own number."""
    ray_address: str | None = None
    """Address of the cluster. By default the environment variable RAY_ADDRESS, or a temporary cluster on this machine.
    """
    time_limit_seconds: float | None = None
    """Time limit for planning, 600 s by default. A packer that improves its plan step by step normally ends earlier,
    after a fixed amount of work. If the limit ends it, the manifest says so, and the same call may give another plan.
    """
    resume: bool = False
    """Resume an interrupted call, if its input and options are the same. Without this, the work starts over."""
    progress: bool = True
    """Whether stderr shows progress: bars on a terminal, otherwise a line every few seconds."""

    def __post_init__(self) -> None:
        """Checks the engine, and whether workers and the cluster's address fit it."""
        kinds = get_args(AnyEngineKind)
        if self.engine not in (None, *kinds):
            raise ValueError(parameter("engine") + f" must be one of {', '.join(kinds)}, got {self.engine!r}")
        if self.workers is not None and (
            isinstance(self.workers, bool) or not isinstance(self.workers, Integral) or self.workers < 1
        ):
            raise ValueError(parameter("workers") + f" must be an integer of at least 1, got {self.workers!r:.60}")
        if self.engine == "ray" and self.workers is not None:
            raise ValueError("workers are of this machine, and a Ray cluster has its own: leave workers out")
        if self.engine != "ray" and self.ray_address is not None:
            raise ValueError(
                parameter("ray_address")
                + f" {self.ray_address!r} is a Ray cluster's: choose "
                + parameter("engine", "ray")
            )

    def refuse(self, work: str, **fields: object) -> None:
        """Raises a ValueError for a field that has no effect on some work, but is set to another value.

        Args:
            work: the work in words, for the message.
            fields: for each such field, the value that it may have in addition to None.
        """
        for name, plain in fields.items():
            if getattr(self, name) not in (None, plain):
                raise ValueError(f"{name} {getattr(self, name)!r} has no effect on {work}: leave it out")
