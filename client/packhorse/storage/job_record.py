"""`JobRecord`: what a job was, by which a later call tells whether it may continue the job's work.

Owns comparing two jobs, and naming their differences. How records are written, also those of tasks, is in `records`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from packhorse.parameters import parameter
from packhorse.storage.records import read_record, write_record

_MOST_NAMED_FILES = 4
"""Most files that a message names for each kind of difference."""


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
        """Returns whether this job is recorded at the path; False if no job is, or its record is damaged.

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
        options, files = begun["options"], begun["files"]  # with the same options, as the release is the same
        found = [
            f"{name} was {options.get(name)!s:.80} and is {value!s:.80}"
            for name, value in self.options.items()
            if options.get(name) != value
        ]
        for what, paths in (
            ("changed since", [path for path in self.files if path in files and self.files[path] != files[path]]),
            ("was not read then", [path for path in self.files if path not in files]),
            ("is not read any more", [path for path in files if path not in self.files]),
        ):
            found += [f"{path} {what}" for path in paths[:_MOST_NAMED_FILES]]
            if len(paths) > _MOST_NAMED_FILES:
                found.append(f"{len(paths) - _MOST_NAMED_FILES:,} more files, too")
        if not found and list(files) != list(self.files):
            found.append("the files come in another order")
        return found
