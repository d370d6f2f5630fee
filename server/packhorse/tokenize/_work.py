"""Tokenizing part by part, so that finished parts survive an interruption.

Owns the work folder `X.tokenizing` beside the output X: it holds a record of the job, and the token files of finished
parts, under numbered prefixes. Leaves writing a part to the recipes in `text` and `_row_recipe`, cutting the input into
parts to `input/parts`, the processes to `_execution`, and joining the parts to `text` and `fine_tuning`.
"""

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, Protocol

from packhorse.formats.file_stamp import FileStamp
from packhorse.formats.files import absolute
from packhorse.jobs import Execution, Progress, open_engine
from packhorse.parameters import parameter
from packhorse.storage import JobRecord, LockHeldError, Records, hold_lock
from packhorse.tokenize._execution import Processes
from packhorse.tokenize._output import checked_idx_path
from packhorse.tokenize.input.parts import Part, SizedRange
from packhorse.tokenize.input.ranges import FileRange
from packhorse.tokenize.tally import Tally

_JOB, _PARTS, _LOCK = "job", "parts", "lock"
"""Names in the work folder: the job's record, the folder with the counts of finished parts, and the lock."""
_START_OVER = "start over with " + parameter("overwrite", True) + " and without " + parameter("resume", True)
_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk without space, and of a used-up quota."""


class Recipe(Protocol):
    """Writes the token files of a part. It is pickled to other processes."""

    def write(self, ranges: Sequence[FileRange], prefix: Path) -> Tally:
        """Tokenizes ranges of files into the token files of a prefix, and returns their counts."""
        ...


@dataclass(frozen=True, kw_only=True)
class Job:
    """The input and all options that shape the output. The same job gives the same parts."""

    files: Sequence[SizedRange]
    options: Mapping[str, Any]
    """Everything else that shapes the output, as JSON values."""

    def record(self) -> JobRecord:
        """Returns the record by which an interrupted call is recognised, with the files as they are now."""
        paths = [file.range.path for file in self.files]
        return JobRecord(
            options=json.loads(json.dumps(dict(self.options))),
            files={absolute(path): list(astuple(FileStamp.of(path))) for path in paths},
        )


class Work:
    """The work folder of a job: its finished parts, and writing the others. Made by `open_work`."""

    def __init__(self, folder: Path, job: Job, record: JobRecord) -> None:
        self._folder = folder.absolute()  # a cluster's processes have another working directory
        self._job = job
        self._record = record

    @property
    def tokenizer_path(self) -> Path:
        """The path at which a tokenizer that is trained for the job is stored until the job ends."""
        return self._folder / "tokenizer.json"

    def prefix(self, number: int) -> Path:
        """Returns the prefix of a part's token files."""
        return self._folder / f"{number:06}"

    def write_parts(self, parts: Sequence[Part], recipe: Recipe, execution: Execution, progress: Progress) -> Tally:
        """Writes those of a job's parts that are not finished, and returns the counts of all parts together.

        Raises:
            ValueError: an input changed while it was read.
        """
        finished = _finished_parts(self._folder)
        tallies = [finished.of(number) for number in range(len(parts))]
        unfinished = [number for number, tally in enumerate(tallies) if tally is None]
        size_bytes = sum(parts[number].size_bytes for number in unfinished)
        processes = Processes.of(execution, size_bytes, len(unfinished))
        tasks = [_Task(recipe, parts[number].ranges, self.prefix(number), processes.threads) for number in unfinished]
        engine_name = execution.engine or "processes"
        read_bytes = tokens = 0

        def expected_tokens() -> int:  # of all unfinished parts, at the rate of those that are done
            return tokens * size_bytes // max(read_bytes, 1)

        with (
            open_engine(processes.workers, engine_name, ray_address=execution.ray_address) as engine,
            progress.task("tokenizing", expected_tokens, "tokens") as advance,
        ):
            for number, tally in zip(unfinished, engine.map(_run, tasks), strict=True):
                tallies[number] = tally
                read_bytes += parts[number].size_bytes
                tokens += tally.tokens
                advance(tally.tokens)
        if differences := self._job.record().differences(asdict(self._record)):
            raise ValueError(f"an input changed while it was read: {'; '.join(differences)}; run it again")
        whole = Tally()
        for part_tally in tallies:
            assert part_tally is not None
            whole.add(part_tally)
        return whole


def _folder_of(output: str | os.PathLike[str]) -> Path:
    """Returns the path of an output's work folder."""
    return checked_idx_path(output).with_suffix(".tokenizing")


def may_replace(output: str | os.PathLike[str], *, resume: bool, overwrite: bool) -> bool:
    """Returns whether existing files of an output may be replaced: with `overwrite`, or to finish a killed call.

    The work folder is removed last. If it is there with `resume`, the files are those of a call that was killed while
    it finished; if that call was of another job, `open_work` refuses its folder.
    """
    return overwrite or (resume and (_folder_of(output) / _JOB).exists())


@contextmanager
def open_work(output: str | os.PathLike[str], job: Job, *, resume: bool, overwrite: bool) -> Iterator[Work]:
    """Locks the work folder of an output prefix, yields it, and removes it when the job is done.

    After a failure the folder stays if a part is finished, except after a ValueError: then the input or an option was
    wrong. Finished parts of an earlier call are used with `resume`; with only `overwrite` they are removed.

    Raises:
        BlockingIOError: another process writes to the folder.
        FileExistsError: the folder has finished parts, and neither `resume` nor `overwrite` is given; or it holds files
            that tokenizing did not write.
        ValueError: the finished parts belong to another job.
    """
    folder = _folder_of(output)
    record = job.record()  # before the lock, which makes the folder: an input may be missing
    with _locked(folder):
        names = [entry.name for entry in folder.iterdir()]
        # A call that was killed before it had written its record left the lock, and maybe "job.partial".
        if _JOB not in names and not all(name.startswith((_LOCK, f"{_JOB}.")) for name in names):
            raise FileExistsError(f"{folder} holds files that tokenizing did not write; choose another output")
        continues = resume and record.is_begun(folder / _JOB, _START_OVER)  # raises if it is another job's
        if not continues:
            if _JOB in names and not (overwrite or resume):
                raise FileExistsError(
                    f"{folder} holds the finished parts of an interrupted call; continue with "
                    + parameter("resume", True)
                    + ", or "
                    + _START_OVER
                )
            _clear(folder)
            record.write(folder / _JOB)
        try:
            yield Work(folder, job, record)
        except BaseException as error:
            if isinstance(error, ValueError) or not _finished_parts(folder).all():
                shutil.rmtree(folder)
            if isinstance(error, OSError) and error.errno in _FULL:
                raise _disk_full(folder) from None
            raise
        shutil.rmtree(folder)


def _disk_full(folder: Path) -> OSError:
    """Returns the error to raise when the disk is full, with what to do about it."""
    way_out = ("continue with " + parameter("resume", True)) if folder.is_dir() else "run it again"
    error = OSError(
        f"{folder.parent} has too little space for {folder.stem}, which takes twice its tokens until it is done: "
        f"{shutil.disk_usage(folder.parent).free:,} bytes are free; make room and "
        + way_out
        + ", or choose an output on another disk"
    )
    error.errno = errno.ENOSPC
    return error


@dataclass(frozen=True, slots=True)
class _Task:
    """A part to write, as it is sent to a process."""

    recipe: Recipe
    ranges: Sequence[FileRange]
    prefix: Path
    threads: int | None
    """Threads that the tokenizers library may use in a separate process; None to leave this process as it is."""


def _run(task: _Task) -> Tally:
    """Writes a part and records it as finished; runs in one of the processes."""
    if task.threads is not None:
        # The library reads these before its first batch. Processes that each took all cores would slow each other down.
        os.environ["TOKENIZERS_PARALLELISM"] = "false" if task.threads == 1 else "true"
        os.environ["RAYON_NUM_THREADS"] = str(task.threads)
    tally = task.recipe.write(task.ranges, task.prefix)
    _finished_parts(task.prefix.parent).add(int(task.prefix.name), tally)  # last, when the part's files are complete
    return tally


def _finished_parts(folder: Path) -> Records[Tally]:
    """Returns the counts of finished parts, by their numbers."""
    return Records(folder / _PARTS, asdict, lambda content: Tally(**content))


def _clear(folder: Path) -> None:
    """Removes everything in the work folder except its lock."""
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != _LOCK:
            entry.unlink()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Makes a folder and locks it against other processes."""
    with ExitStack() as stack:
        try:
            stack.enter_context(hold_lock(folder / _LOCK, wait_seconds=0))
        except LockHeldError as error:
            raise BlockingIOError(
                f"{error.holder} is writing to {folder}; wait for it, or choose another output"
            ) from None
        yield
