"""Records of a job and of its finished tasks, by which interrupted work resumes.

Owns their form and their checksum. Leaves files that must survive a crash to `replacing`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, TypeVar

import xxhash

from packhorse.parameters import parameter

_Result = TypeVar("_Result")

_MOST_NAMED = 4
"""Most files that a message names for each kind of difference."""


def write_record(path: Path, content: Any) -> None:
    """Writes JSON with a checksum, whole or not at all.

    The file is not synced: after a crash of the machine the checksum shows whether it is intact.
    """
    body = json.dumps(content).encode()
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(xxhash.xxh3_64_hexdigest(body).encode() + b"\n" + body)
    partial.rename(path)


def read_record(path: Path) -> Any | None:
    """Returns the content that `write_record` wrote; None if the file is missing or damaged."""
    try:
        checksum, _, body = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    return json.loads(body) if checksum == xxhash.xxh3_64_hexdigest(body).encode() else None


@dataclass(frozen=True, slots=True)
class Records(Generic[_Result]):
    """The results of finished tasks, one file for each task, by which interrupted work resumes.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     records = Records(Path(folder, "counts"), save=str, load=int)
        ...     records.add(7, 700)
        ...     records.of(7), records.of(8), records.all()
        (700, None, [700])
    """

    folder: Path
    """Folder of the files; made with the first record, in a folder that exists."""
    save: Callable[[_Result], Any]
    """Function that turns a result into what JSON can hold."""
    load: Callable[[Any], _Result]
    """Function that turns this back into a result."""

    def add(self, task: int, result: _Result) -> None:
        """Records that task number `task` is finished, with its result."""
        self.folder.mkdir(exist_ok=True)
        write_record(self._path(task), self.save(result))

    def remove(self, task: int) -> None:
        """Removes the record of a task, if there is one."""
        self._path(task).unlink(missing_ok=True)

    def of(self, task: int) -> _Result | None:
        """Returns the result of a task; None if it is not finished, or its record is damaged."""
        content = read_record(self._path(task))
        return None if content is None else self.load(content)

    def all(self) -> list[_Result]:
        """Returns the results of all finished tasks, in the order of their numbers (which are below 10^6)."""
        names = sorted(path.name for path in self.folder.glob("[0-9]*[0-9]"))
        return [result for name in names if (result := self.of(int(name))) is not None]

    def _path(self, task: int) -> Path:
        return self.folder / f"{task:06}"


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """The input and options of a job: two jobs with equal records have the same tasks, with the same results.

    Example:
        >>> began, now = (JobRecord(options={"length": length}, files={}) for length in (8, 16))
        >>> now.differences(asdict(began))
        ['length was 8 and is 16']
    """

    options: Mapping[str, Any]
    """Parameter → value, as JSON can hold it."""
    files: Mapping[str, list[int | str]]
    """Path or URL of each input file, in order → what identifies its state, such as size and time of change."""
    release: str = version("packhorse")
    """Release of Packhorse; another release may divide the work into other tasks."""

    def write(self, path: Path) -> None:
        """Records the job, when its work begins."""
        write_record(path, asdict(self))

    def is_begun(self, path: Path, way_out: str) -> bool:
        """Returns whether this job is recorded at the path; False if no job is.

        Raises:
            ValueError: another job is recorded there; the message lists the differences and ends with `way_out`.
        """
        begun = read_record(path)
        if begun is not None and (differences := self.differences(begun)):
            raise ValueError(
                parameter("resume")
                + f" cannot continue the work of an interrupted call: {'; '.join(differences)}. Give the same "
                "input and options, or " + way_out
            )
        return begun is not None

    def differences(self, begun: Mapping[str, Any]) -> list[str]:
        """Returns a sentence for each difference between this job and `begun`, the record that another call wrote."""
        if begun.get("release") != self.release:
            return [f"it was begun by release {begun.get('release')}, and this is {self.release}"]
        options, files = begun["options"], begun["files"]
        said = [
            f"{name} was {options.get(name)!s:.80} and is {value!s:.80}"
            for name, value in self.options.items()
            if options.get(name) != value
        ]
        for what, paths in (
            ("changed since", [path for path in self.files if path in files and self.files[path] != files[path]]),
            ("was not read then", [path for path in self.files if path not in files]),
            ("is not read any more", [path for path in files if path not in self.files]),
        ):
            said += [f"{path} {what}" for path in paths[:_MOST_NAMED]]
            said += [f"{len(paths) - _MOST_NAMED:,} more files, too"] * (len(paths) > _MOST_NAMED)
        if not said and list(files) != list(self.files):
            said.append("the files come in another order")
        return said
