"""Records of finished tasks, by which interrupted work resumes.

Owns their form and their checksum. Leaves what a job was to `job_record`, and files that must survive a crash to
`replacing`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import xxhash

_Result = TypeVar("_Result")


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
        """Returns the results of all finished tasks, in the order of their numbers."""
        tasks = sorted(int(path.name) for path in self.folder.glob("[0-9]*[0-9]"))  # and no *.partial
        return [result for task in tasks if (result := self.of(task)) is not None]

    def _path(self, task: int) -> Path:
        return self.folder / f"{task:06}"
