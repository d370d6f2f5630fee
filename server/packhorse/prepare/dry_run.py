"""`dry_run` says what the arguments of `prepare` would give and cost, without writing a dataset.

Owns the estimates. Leaves checking arguments to `job`, and counting and planning to `_sort`.
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
from packhorse.packing import PackingPlan, PackingStats
from packhorse.prepare._sort import Sort
from packhorse.prepare.job import checked_job
from packhorse.prepare.options import plan_and_columns
from packhorse.prepare.pipeline import prepare
from packhorse.prepare.records.inputs import write_inputs
from packhorse.prepare.totals import Counted

_Arguments = ParamSpec("_Arguments")

_TEMPLATE_BYTES, _LENGTH_BYTES = 16, 6
"""Bytes in templates.json of a template, and of each of its lengths."""
_OTHER_BYTES = 1 << 14
"""Bytes of the manifest and the counts."""
_KEY_BYTES = 24
"""Bytes in the table of keys for each key, in addition to the key's own."""
_CHECKSUM_BYTES_PER_SECOND = 1 << 29
"""Bytes of the folder that are summed in a second, about, when the manifest is written."""


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """Facts about the dataset that `prepare` would make, and estimates of the cost."""

    inputs: Inputs
    """The files that were read, and the bad rows that would be left out."""
    over_length: OverLengthLedger
    """The sequences that are too long, and what the over-length policy would do to them."""
    stats: PackingStats
    """The plan's bins and efficiency."""
    algorithm: str
    """The packer that made the plan."""
    plan_cut_off: bool
    """Whether a time limit ended planning early."""
    disk_bytes: int
    """About how many bytes the prepared folder would take."""
    work_bytes: int
    """About how many bytes the work folder beside it would take meanwhile."""
    free_bytes: int
    """Free bytes on the disk of `output`."""
    seconds: float
    """About how long preparing would take, estimated from the time of one read and the plan."""


def _with_arguments_of(
    function: Callable[_Arguments, object],
) -> Callable[[Callable[..., DryRun]], Callable[_Arguments, DryRun]]:
    """Returns a decorator that gives a function of `**arguments` the parameters and defaults of another function.

    So the parameters of `prepare` are written once, and help, editors and mypy show them for `dry_run` too.
    """

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
    """Reads lengths once, plans, and writes no dataset; only tables of groups go into a temporary folder.

    Example:
        >>> found = dry_run("corpus.idx", max_seq_len=8, output="datasets/packed")  # 5, 3, 3 and 5 tokens
        >>> found.stats.n_bins, found.stats.efficiency, found.inputs.kind, found.inputs.rows
        (2, 1.0, 'Megatron', 4)

    Args:
        arguments: the arguments of `prepare`, checked in the same way, including `output`.

    Returns:
        Counts, the plan's figures, and estimates of `prepare`'s time and disk. Ids that occur twice go unnoticed.

    Raises:
        FileExistsError, FileNotFoundError, ValueError, TypeError, ImportError: as `prepare` does.
    """
    begin = time.perf_counter()
    max_seq_len, length_column = arguments.pop("max_seq_len"), arguments.pop("length_column")
    plan_options, columns = plan_and_columns(
        max_seq_len, length_column, arguments.pop("plan"), arguments.pop("columns")
    )
    execution = arguments.pop("execution") or Execution()
    job = checked_job(**arguments, plan=plan_options, columns=columns, execution=execution)
    with tempfile.TemporaryDirectory(prefix="packhorse-") as scratch, job.started(Path(scratch)) as sort:
        counting_begin = time.perf_counter()
        counted = sort.count()
        counting_seconds = time.perf_counter() - counting_begin
        plan = sort.plan(counted)
        other_seconds = time.perf_counter() - begin - counting_seconds  # for finding the input, groups, and planning
    disk_bytes = _disk_bytes(sort, counted, plan)
    existing_parent = next(folder for folder in job.folder.resolve().parents if folder.is_dir())
    num_passes = 3 if sort.are_ids_given else 2  # sorting and comparing ids takes about as long as another pass
    return DryRun(
        inputs=write_inputs(None, job.opened, counted.skipped, sort.before),
        over_length=counted.facts.over_length,
        stats=replace(sort.stats(plan), n_sequences=counted.facts.num_sequences),
        algorithm=plan.algorithm,
        plan_cut_off=plan.cut_off,
        disk_bytes=disk_bytes,
        work_bytes=counted.array_bytes,
        free_bytes=shutil.disk_usage(existing_parent).free,
        seconds=other_seconds + num_passes * counting_seconds + disk_bytes / _CHECKSUM_BYTES_PER_SECOND,
    )


def _disk_bytes(sort: Sort, counted: Counted, plan: PackingPlan) -> int:
    """Returns about how many bytes the prepared folder takes."""
    num_bytes = counted.array_bytes + _OTHER_BYTES + (sort.groups.array_bytes if sort.groups else 0)
    if sort.sequences.keys is not None:
        num_bytes += sum(len(keys.data) + _KEY_BYTES * len(keys.sizes) for keys in sort.sequences.keys.rows())
    return num_bytes + sum(_TEMPLATE_BYTES + _LENGTH_BYTES * len(template) for template in plan.templates)
