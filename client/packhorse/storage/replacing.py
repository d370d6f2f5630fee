"""Files that appear whole or not at all, written under another name and then renamed; and locks between processes.

Owns one file, several that belong together, and the records of a job and its finished tasks, by which interrupted work
resumes; removes what killed processes left. The system releases a lock when its holder ends, however it ends. Leaves
whole folders to `packhorse.dataset`, and contents to their formats.
"""

import fcntl
import glob
import json
import logging
import math
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import IO, Any, BinaryIO, Generic, TypeVar

import xxhash

from packhorse.parameters import parameter

_POLL_SECONDS = 0.02


class LockHeldError(BlockingIOError):
    """Another process holds the lock."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"{path} is locked by {holder}")
        self.holder = holder
        """Such as `process 17 on node-3 since 2031-01-01 12:00:00`."""


@contextmanager
def hold_lock(path: Path, *, wait_seconds: float = math.inf) -> Iterator[None]:
    """Holds the lock of a file or a folder.

    The holder may remove the file, also with its folder, before it lets go: who waits then makes both again.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, hold_lock(Path(folder, "lock")):
        ...     with hold_lock(Path(folder, "lock"), wait_seconds=0):
        ...         pass
        Traceback (most recent call last):
            ...
        packhorse.storage.replacing.LockHeldError: ... is locked by process ... on ... since ...

    Args:
        path: of a folder, or of a file that holds nothing else; the file is made, with its folder, where it is missing.
        wait_seconds: how long to wait for another holder.

    Raises:
        LockHeldError: another process still holds it.
        OSError: the file cannot be made, or the file system has no locks.
    """
    ends = time.monotonic() + wait_seconds
    while True:
        descriptor = _opened(path)
        try:
            if try_lock(descriptor):
                if _is_at(descriptor, path):
                    if not path.is_dir():
                        since = time.strftime("%Y-%m-%d %H:%M:%S")
                        os.truncate(descriptor, 0)
                        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()} since {since}".encode())
                    yield
                    return
                continue
            if time.monotonic() >= ends:
                raise LockHeldError(path, _holder(descriptor, path))
        finally:
            os.close(descriptor)
        time.sleep(_POLL_SECONDS)


def try_lock(file: int | IO[bytes] | IO[str], *, shared: bool = False) -> bool:
    """Locks an open file until it is closed; returns False where another process holds it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryFile() as file:
        ...     try_lock(file)
        True

    Args:
        file: or its descriptor.
        shared: several may hold such a lock, and none an exclusive one meanwhile.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _opened(path: Path) -> int:
    if path.is_dir():
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:  # its last holder has just removed the folder
            continue


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether a path still leads to an open file, which may have been removed between opening and locking."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _holder(descriptor: int, path: Path) -> str:
    written = b"" if path.is_dir() else os.read(descriptor, 200)
    return written.decode(errors="replace") or "another process"


_Result = TypeVar("_Result")

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/+")
"""What a URL begins with, also one that was made a path, which has one slash."""
_MOST_NAMED = 4
_LOG = logging.getLogger(__name__)


class AtomicFiles:
    """Several files that are published together, as a context manager. After an exception, there is no file.

    Each is written under a temporary name in its own folder, and locked as long as it has that name. On success all are
    synced and renamed in the given order, so the last file says that the others are there. Nobody locks the temporary
    files of a killed process; the next process that writes to the same path removes them.

    Args:
        paths: of the files, the most telling one last. Their folders are made.
        overwrite: whether to replace existing files.

    Raises:
        FileExistsError: one is already there and overwrite is False.
        IsADirectoryError: one is a folder.
        ValueError: one is a URL.
    """

    def __init__(self, paths: Sequence[Path], *, overwrite: bool = False) -> None:
        self._paths = [Path(path) for path in paths]
        refuse_existing(self._paths, overwrite=overwrite)
        self._temporary = [path.with_name(f".{path.name}.{os.getpid()}.partial") for path in self._paths]
        self.files: list[BinaryIO] = []
        try:
            for temporary in self._temporary:
                temporary.parent.mkdir(parents=True, exist_ok=True)
                self.files.append(temporary.open("wb"))
                with suppress(OSError):  # a file system without locks
                    try_lock(self.files[-1])
            for path in self._paths:
                _remove_abandoned(path)
        except OSError:
            self.discard()
            raise

    def __enter__(self) -> "AtomicFiles":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.publish()
        else:
            self.discard()

    def publish(self) -> None:
        """Syncs and renames the files; after a failure the old files are there, and nothing temporary."""
        several = len(self._paths) > 1  # one file is replaced by its rename alone, and is never missing
        aside: list[tuple[Path, Path]] = []
        renamed: list[Path] = []
        try:
            for file in self.files:
                file.flush()
                os.fsync(file.fileno())
            # Old files go first, last name first: a crash in between must not leave a pair that does not match.
            for temporary, path in reversed(list(zip(self._temporary, self._paths, strict=True))):
                if several and path.exists():
                    aside.append((temporary.with_name(f"{temporary.name}.old"), path))
                    os.replace(path, aside[-1][0])
            for temporary, path in zip(self._temporary, self._paths, strict=True):
                os.replace(temporary, path)
                if several:
                    renamed.append(path)
            for file in self.files:
                file.close()
        except BaseException:
            for path in reversed(renamed):
                path.unlink()
            for old, path in reversed(aside):
                if old.exists():
                    os.replace(old, path)
            self.discard()
            raise
        for old, _ in aside:
            old.unlink()
        for folder in {path.parent for path in self._paths}:
            sync(folder)

    def discard(self) -> None:
        """Closes and removes the temporary files."""
        for file in self.files:
            file.close()
        for temporary in self._temporary:
            temporary.unlink(missing_ok=True)


def _remove_abandoned(path: Path) -> None:
    """Removes what killed processes left of a file."""
    for name in glob.glob(f".{glob.escape(path.name)}.*.partial", root_dir=path.parent):
        with suppress(OSError), path.with_name(name).open("rb") as file:
            if try_lock(file):  # nobody writes to it any more
                path.with_name(name).unlink()
                _LOG.warning("removed %s, which a killed process left", path.with_name(name))


def refuse_url(output: str | os.PathLike[str], name: str = "the output") -> None:
    """Refuses to write to a URL.

    Example:
        >>> refuse_url("s3://corpus/packed", "output")
        Traceback (most recent call last):
            ...
        ValueError: output s3://corpus/packed is a URL; give a path on a disk, and copy the files from there yourself

    Args:
        output: where to write.
        name: of the parameter, for the message.

    Raises:
        ValueError: the output is a URL.
    """
    shown = os.fspath(output)
    if isinstance(shown, str) and (begin := _URL.match(shown)):
        url = f"{begin[0].rstrip('/')}//{shown[begin.end() :]}"
        raise ValueError(
            parameter(name) + f" {url} is a URL; give a path on a disk, and copy the files from there yourself"
        )


def refuse_existing(paths: Sequence[Path], *, overwrite: bool) -> None:
    """Refuses to write over files.

    Raises:
        FileExistsError: one of the paths is there and overwrite is False.
        IsADirectoryError: one of the paths is a folder.
        ValueError: one of the paths is a URL.
    """
    for path in paths:
        refuse_url(path)
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder, not a file; choose another output")
        if path.exists() and not overwrite:
            raise FileExistsError(
                f"{path} is already there; remove it, choose another output, or set " + parameter("overwrite", True)
            )


def sync(path: Path) -> None:
    """Makes a file or a folder durable: what any process of this machine wrote to it outlives a crash.

    Example:
        >>> sync(Path("datasets/corpus/manifest.json"))
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_bytes(path: Path, data: bytes) -> None:
    """Replaces a file at once, durably, or makes it; readers see the old content or the new. Its permissions stay.

    Example:
        >>> replace_bytes(Path("note.txt"), b"the new text")
        >>> Path("note.txt").read_text()
        'the new text'

    Raises:
        OSError: it cannot be written; the file stays as it was.
    """
    with AtomicFiles([path], overwrite=True) as files:
        if path.exists():
            os.fchmod(files.files[0].fileno(), path.stat().st_mode)
        files.files[0].write(data)


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
        """Removes the record of a task, where there is one."""
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
