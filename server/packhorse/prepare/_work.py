"""The work folder, hidden beside the output: unfinished files, and records of finished tasks.

Owns which interrupted work may be resumed. Leaves the form of records to `packhorse.storage`, what tasks write to
`_spills` and `_merging`, and the lock, and how the output gets its name, to `packhorse.dataset`.
"""

import errno
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from packhorse.dataset import LOCK, PlanOptions, locked
from packhorse.formats.files import absolute
from packhorse.jobs import held_signals
from packhorse.packing import PackingPlan
from packhorse.parameters import parameter
from packhorse.prepare.grouping import Grouping
from packhorse.prepare.input import Opened
from packhorse.storage import JobRecord, Records, read_record, write_record

_Result = TypeVar("_Result")

_JOB, _PARTS = "job", "parts"
_START_OVER = "leave out " + parameter("resume", True) + " to start over"
_REFUSALS = (ValueError, TypeError, ImportError, FileExistsError)


@dataclass(frozen=True, slots=True)
class WorkFolder:
    """A work folder that this process has locked."""

    path: Path

    @property
    def partial(self) -> Path:
        """Where the prepared folder is written."""
        return self.path / "output"

    @property
    def spills(self) -> Path:
        """The folder of sorted files, and of the arrays that they are merged into."""
        return self.path / "spills"

    def rows_of_task(self, wanted: int) -> int:
        """Returns the rows of a task: as when the work began, since workers may have changed, or else as wanted."""
        return self._as_begun("rows_of_task", wanted)

    def merging_workers(self, wanted: int) -> int:
        """Returns the workers that ranges to merge are cut for, in the same way."""
        return self._as_begun("merging_workers", wanted)

    @property
    def parts(self) -> Records[str]:
        """Names of folders beside the output that are prepared for it, each with a work folder of its own.

        These are cleared with this one.
        """
        return self.records(_PARTS, save=str, load=str)

    def _as_begun(self, name: str, wanted: int) -> int:
        path = self.path / name
        number: int = read_record(path) or wanted
        write_record(path, number)
        return number

    def records(self, name: str, save: Callable[[_Result], Any], load: Callable[[Any], _Result]) -> Records[_Result]:
        """Returns the records of one pass.

        Args:
            name: of the pass.
            save: turns a task's result into what JSON can hold.
            load: turns it back.
        """
        return Records(self.path / name, save, load)


def record_of(
    opened: Opened,
    options: PlanOptions,
    grouping: Grouping | None = None,
    *,
    appended_to: str | None = None,
    **also: Any,
) -> JobRecord:
    """Returns the record of a job, which may append to the dataset of a digest; `also` has further options."""
    columns = opened.columns
    return JobRecord(
        options={
            **asdict(options),
            "length_column": columns.length,
            "id_column": columns.id or columns.key,
            "group_column": columns.group,
            "on_bad_row": columns.on_bad_row,
            "resources": [asdict(each) for each in columns.resources],
            "append": appended_to,
            "group_size": grouping.size if grouping else None,
            "share_prefixes": str(grouping.share_prefixes) if grouping and grouping.share_prefixes else None,
            **also,
        },
        files={
            absolute(file.path): [file.stamp.size_bytes, file.stamp.modified_ns, file.stamp.version, file.num_rows]
            for file in (*opened.files, *(grouping.files if grouping else ()))
        },
    )


@contextmanager
def working(output: Path, job: JobRecord | None, *, resume: bool) -> Iterator[WorkFolder]:
    """Gives the work folder of an output, locked.

    After success it is removed. After a failure it stays if a later call could resume it: not if the input or an
    argument was refused, or the disk is full.

    Args:
        output: the folder to be.
        job: its record; None for input that cannot be recognised later, whose work is never kept.
        resume: whether to continue the work that is there; else it starts over.

    Raises:
        BlockingIOError: another process works there; the message says which.
        ValueError: the work that is there is of another job; the message says what differs.
    """
    with locked(output) as folder:
        work, before = WorkFolder(folder), _inode(output)
        goes_on = job is not None and resume and job.is_begun(folder / _JOB, _START_OVER)
        try:
            if not goes_on:
                _clear(folder)
            if job is not None:
                job.write(folder / _JOB)
            shutil.rmtree(work.partial, ignore_errors=True)
            work.spills.mkdir(exist_ok=True)
            yield work
        except BaseException as error:
            if job is None or _is_final(error) or _inode(output) != before:  # stopped when all was done
                _clear(folder)
            raise
        _clear(folder)


def _inode(folder: Path) -> int | None:
    return folder.stat().st_ino if folder.exists() else None


def _is_final(error: BaseException) -> bool:
    """Whether the same call would fail again, or kept files would be in the way."""
    is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return is_full or isinstance(error, _REFUSALS)


def _clear(folder: Path) -> None:
    with held_signals():
        for name in WorkFolder(folder).parts.all():
            _clear_part(folder.with_name(name))
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != LOCK:
                path.unlink()


def _clear_part(output: Path) -> None:
    """Clears the work that a killed process left of a part, unless another process works there now."""
    if output.with_name(f".{output.name}.work").is_dir():
        with suppress(BlockingIOError), locked(output) as folder:
            _clear(folder)


def plan_content(plan: PackingPlan) -> dict[str, Any]:
    """Returns a plan as JSON can hold it."""
    return {
        "templates": [[*template, multiplicity] for template, multiplicity in plan.templates.items()],
        "max_seq_len": plan.max_seq_len,
        "lower_bound": plan.lower_bound,
        "algorithm": plan.algorithm,
        "note": plan.note,
    }


def plan_of(content: dict[str, Any]) -> PackingPlan:
    """Returns what `plan_content` was made of."""
    templates = Counter({tuple(lengths): multiplicity for *lengths, multiplicity in content["templates"]})
    return PackingPlan(**{**content, "templates": templates})
