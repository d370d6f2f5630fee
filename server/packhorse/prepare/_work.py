"""The work folder, hidden beside the output: unfinished files, and records of finished tasks.

Owns what a work folder holds, and which interrupted work may be resumed. Leaves the form of records to
`packhorse.storage`, what tasks write to `_spills` and `_merging`, and the lock, and how the output gets its name, to
`packhorse.dataset`.
"""

import errno
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from packhorse.dataset import LOCK, PlanOptions, locked
from packhorse.formats.files import absolute
from packhorse.jobs import held_signals
from packhorse.parameters import parameter
from packhorse.prepare.groups.grouping import Grouping
from packhorse.prepare.input import Opened
from packhorse.storage import JobRecord, Records, read_record, write_record

_Result = TypeVar("_Result")

_JOB = "job"
"""Name of the record of the job in a work folder."""
_SHARD_NAMES = "shard_names"
"""Name of the records of shards' names in a work folder."""
_START_OVER = "leave out " + parameter("resume", True) + " to start over"
_REFUSALS = (ValueError, TypeError, ImportError, FileExistsError)
"""Errors of input or arguments, which the same call would meet again."""


@dataclass(frozen=True, slots=True)
class WorkFolder:
    """A work folder that this process has locked."""

    path: Path
    """Path of the folder, which `locked` made."""

    @property
    def partial(self) -> Path:
        """The folder in which the prepared folder is written before it gets its name."""
        return self.path / "output"

    @property
    def spills(self) -> Path:
        """The folder of sorted files, and of the arrays that they are merged into."""
        return self.path / "spills"

    def as_begun(self, name: str, for_new_work: int) -> int:
        """Returns the number with which the work began, such as the rows of a task.

        A resumed call may have other workers, but must cut the same tasks as before, to recognise the finished ones.

        Args:
            name: the name of the number.
            for_new_work: the number if no work has begun.
        """
        path = self.path / name
        number: int = read_record(path) or for_new_work
        write_record(path, number)
        return number

    @property
    def shard_names(self) -> Records[str]:
        """Names of the shards that `shard` prepares beside the output, each with a work folder of its own.

        These work folders are cleared together with this one.
        """
        return self.records(_SHARD_NAMES, save=str, load=str)

    def records(self, name: str, save: Callable[[_Result], Any], load: Callable[[Any], _Result]) -> Records[_Result]:
        """Returns the records of one pass.

        Args:
            name: the name of the pass.
            save: turns a task's result into values that JSON can hold.
            load: turns these values back into the result.
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
    """Returns the record of a job: everything that must be the same when it is resumed.

    Args:
        opened: the input.
        options: options of the plan.
        grouping: which rows are a group; None for no groups.
        appended_to: digest of the dataset to append to; None for a new one.
        also: further options.
    """
    columns = opened.columns
    return JobRecord(
        options={
            **asdict(options),
            "length_column": columns.length,
            "id_column": columns.id or columns.key,  # whichever the named column holds
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

    After success the folder is cleared. After a failure it stays if a later call could resume the work. It is cleared
    if the input or an argument was refused, or the disk is full.

    Args:
        output: the folder to be written.
        job: the job's record; None for input that cannot be recognised later, whose work never stays.
        resume: whether to continue interrupted work; if not, the job starts over.

    Raises:
        BlockingIOError: another process holds the work folder; the message says which.
        ValueError: the interrupted work is of another job; the message says what differs.
    """
    with locked(output) as folder:
        work, inode_before = WorkFolder(folder), _inode(output)
        continues = job is not None and resume and job.is_begun(folder / _JOB, _START_OVER)
        try:
            if not continues:
                _clear(folder)
            if job is not None:
                job.write(folder / _JOB)
            shutil.rmtree(work.partial, ignore_errors=True)
            work.spills.mkdir(exist_ok=True)
            yield work
        except BaseException as error:
            # Another inode means that the output has been replaced already, so nothing is left to resume.
            if job is None or _is_final(error) or _inode(output) != inode_before:
                _clear(folder)
            raise
        _clear(folder)


def _inode(folder: Path) -> int | None:
    """Returns the number by which the file system knows a folder; None if there is no such folder."""
    return folder.stat().st_ino if folder.exists() else None


def _is_final(error: BaseException) -> bool:
    """Returns whether the same call would fail again, or files left behind would keep the disk full."""
    is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return is_full or isinstance(error, _REFUSALS)


def _clear(folder: Path) -> None:
    """Removes everything in a work folder except the lock, and the work of the shards that it names."""
    with held_signals():
        for name in WorkFolder(folder).shard_names.all():
            _clear_shard(folder.with_name(name))
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != LOCK:
                path.unlink()


def _clear_shard(output: Path) -> None:
    """Clears the work folder that a killed process left of a shard, unless another process works there now."""
    if output.with_name(f".{output.name}.work").is_dir():
        with suppress(BlockingIOError), locked(output) as folder:
            _clear(folder)
