"""`dry_run`: what `prepare` would make of the same arguments, found by reading and planning alone.

Owns what it tells, and the estimates of time and disk; leaves the arguments to `job`.
"""

import inspect
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from packhorse.dataset import Inputs, OverLengthLedger
from packhorse.jobs import Execution
from packhorse.packing import PackingStats
from packhorse.prepare.input.records import write_inputs
from packhorse.prepare.job import checked_job, plan_and_columns
from packhorse.prepare.pipeline import prepare

_Arguments = ParamSpec("_Arguments")

_TEMPLATE_BYTES, _LENGTH_BYTES, _OTHER_BYTES = 16, 6, 1 << 14
_KEY_BYTES = 24
"""Of a key, beside its own."""
_CHECKSUM_BYTES_PER_SECOND = 1 << 29


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """What preparing would give, and cost."""

    inputs: Inputs
    """What was read, and which rows would be left out because something is wrong with them."""
    over_length: OverLengthLedger
    """What the over-length policy would do."""
    stats: PackingStats
    """The plan's bins and efficiency."""
    algorithm: str
    """The packer that made the plan."""
    plan_cut_off: bool
    """Whether a time limit ended planning early."""
    disk_bytes: int
    """What the prepared folder would take, about."""
    work_bytes: int
    """What the work folder beside it would take meanwhile, about."""
    free_bytes: int
    """What is free where it would be written."""
    seconds: float
    """How long preparing would take, about: from how long reading once and planning took just now."""


def _with_arguments_of(
    function: Callable[_Arguments, object],
) -> Callable[[Callable[..., DryRun]], Callable[_Arguments, DryRun]]:
    """Gives a function the parameters of another, by which it is then called with keywords only."""

    def decorate(inner: Callable[..., DryRun]) -> Callable[_Arguments, DryRun]:
        signature = inspect.signature(function)

        @wraps(inner)
        def bound(*args: Any, **kwargs: Any) -> DryRun:
            arguments = signature.bind(*args, **kwargs)
            arguments.apply_defaults()
            return inner(**arguments.arguments)

        bound.__signature__ = signature.replace(return_annotation=DryRun)  # type: ignore[attr-defined]
        return bound

    return decorate


@_with_arguments_of(prepare)
def dry_run(**arguments: Any) -> DryRun:
    """Reads lengths once and plans, and writes nothing; tables of groups lie in a temporary folder meanwhile.

    Example:
        >>> found = dry_run("corpus.idx", max_seq_len=8, output="datasets/packed")  # 5, 3, 3 and 5 tokens
        >>> found.stats.n_bins, found.stats.efficiency, found.inputs.kind, found.inputs.rows
        (2, 1.0, 'Megatron', 4)

    Args:
        arguments: those of `prepare`, which checks them in the same way; `output` need not be there, and what `prepare`
            would refuse there is refused here.

    Returns:
        Counts, plan, and about how much time and disk `prepare` would take. Ids are not compared with each other.

    Raises:
        FileExistsError, FileNotFoundError, ValueError, TypeError, ImportError: as `prepare` does.
    """
    began = time.perf_counter()
    words = [arguments.pop(name) for name in ("max_seq_len", "length_column", "plan", "columns")]
    options, columns = plan_and_columns(*words)
    execution = arguments.pop("execution") or Execution()
    job = checked_job(**arguments, plan=options, columns=columns, execution=execution)
    with tempfile.TemporaryDirectory(prefix="packhorse-") as scratch, job.started(Path(scratch)) as sort:
        finding = time.perf_counter() - began
        counted = sort.count()
        counting = time.perf_counter() - began - finding
        plan = sort.plan(counted)
        planning = time.perf_counter() - began - finding - counting
    disk_bytes = counted.array_bytes + _OTHER_BYTES + (sort.groups.array_bytes if sort.groups else 0)
    stats = PackingStats.from_templates(
        plan.templates,
        job.options.max_seq_len,
        max_sequences_per_bin=job.options.max_sequences_per_bin,
        proven_bound=plan.lower_bound,
    )
    if sort.groups is not None:
        stats = replace(stats, n_sequences=sort.groups.n_sequences)
    read = sort.groups.read if sort.groups else sort.opened
    if read.keys is not None:
        disk_bytes += sum(len(some.data) + _KEY_BYTES * len(some.sizes) for some in read.keys.rows())
    disk_bytes += sum(_TEMPLATE_BYTES + _LENGTH_BYTES * len(template) for template in plan.templates)
    parent = next(folder for folder in job.folder.resolve().parents if folder.is_dir())
    passes = 3 if sort.are_ids_given else 2  # sorting and comparing ids take about as long as one more
    return DryRun(
        inputs=write_inputs(None, job.opened, counted.skipped, sort.before),
        over_length=counted.over_length,
        stats=stats,
        algorithm=plan.algorithm,
        plan_cut_off=plan.cut_off,
        disk_bytes=disk_bytes,
        work_bytes=counted.array_bytes,
        free_bytes=shutil.disk_usage(parent).free,
        seconds=finding + passes * counting + planning + disk_bytes / _CHECKSUM_BYTES_PER_SECOND,
    )
