"""Records of a job and of its finished tasks, by which interrupted work resumes.

Owns their form and their checksum. Leaves files that users keep to `replacing`.
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


def write_record(path: Path, content: Any) -> None:
    """Writes JSON with a checksum, whole or not at all; not durably, since the checksum tells after a crash."""
    body = json.dumps(content).encode()
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(xxhash.xxh3_64_hexdigest(body).encode() + b"\n" + body)
    partial.rename(path)


def read_record(path: Path) -> Any | None:
    """Reads what `write_record` wrote; None if it is missing or damaged."""
    try:
        checksum, _, body = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    return json.loads(body) if checksum == xxhash.xxh3_64_hexdigest(body).encode() else None


@dataclass(frozen=True, slots=True)
class Records(Generic[_Result]):
    """The results of finished tasks, a file each, by which interrupted work resumes.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     records = Records(Path(folder, "counts"), save=str, load=int)
        ...     records.add(7, 700)
        ...     records.of(7), records.of(8), records.all()
        (700, None, [700])
    """

    folder: Path
    """Made with the first record; its parent is there."""
    save: Callable[[_Result], Any]
    """Turns a result into what JSON can hold."""
    load: Callable[[Any], _Result]
    """Turns it back."""

    def add(self, task: int, result: _Result) -> None:
        """Records that a task is finished."""
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
        """Returns the results of all finished tasks, in order."""
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
    """Path or URL → what tells one state of it from another, such as size and time of change; in order."""
    release: str = version("packhorse")
    """Of Packhorse: another may cut tasks otherwise."""

    def write(self, path: Path) -> None:
        """Records with what the work begins."""
        write_record(path, asdict(self))

    def is_begun(self, path: Path, way_out: str) -> bool:
        """Whether the job was recorded at the path; a ValueError, which ends with the way out, if another one was."""
        begun = read_record(path)
        if begun is not None and (differences := self.differences(begun)):
            raise ValueError(
                parameter("resume")
                + f" cannot continue the work of an interrupted call: {'; '.join(differences)}. Give the same "
                "input and options, or " + way_out
            )
        return begun is not None

    def differences(self, begun: Mapping[str, Any]) -> list[str]:
        """Returns a sentence for each difference from what `read_record` read of the record with which work began."""
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
