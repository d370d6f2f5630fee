"""Reading files that users name, whatever stands there: a pipe, a device, or a folder whose file system hangs.

Owns that nobody waits for such a file: only plain files are opened, and in a server what asks the file system gives up
in time.
Leaves what a file says to its reader, and noticing that it changed to `caches`.
"""

import errno
import io
import os
import stat
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

_Answer = TypeVar("_Answer")

ANSWER_SECONDS = 10.0
"""How long a file system may take to answer: to look at some files, or to read one of a few megabytes."""

_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)

_UNANSWERED: "dict[str, Future[object]]" = {}
"""What was asked and had no answer in time, by its key. A forked child has its own, which is empty."""

os.register_at_fork(after_in_child=_UNANSWERED.clear)

_never_waits = False


def never_wait_for_files() -> None:
    """Lets every look at a file in this process give up in time, for processes that others wait for: servers.

    Elsewhere, in a command or a training process, a look is a plain call: nobody else waits, and a thread for each look
    would take longer than opening a dataset.
    """
    global _never_waits
    _never_waits = True


def open_plain(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Opens a plain file for reading, and nothing else: opening a pipe would wait for a writer, or a device do harm.

    Example:
        >>> os.mkfifo("pipe")
        >>> open_plain("pipe")
        Traceback (most recent call last):
            ...
        OSError: [Errno 22] it is a pipe, and must be a plain file: 'pipe'

    Raises:
        OSError: it cannot be opened, or is something else; `strerror` says which.
    """
    check_plain(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # it may have become a pipe meanwhile
    try:
        _check_kind(os.fstat(descriptor), path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def check_plain(path: str | os.PathLike[str]) -> None:
    """Refuses what is no plain file, for libraries that open files by themselves.

    Example:
        >>> check_plain(".")
        Traceback (most recent call last):
            ...
        IsADirectoryError: [Errno 21] Is a directory: '.'

    Raises:
        OSError: it is something else, or not there; `strerror` says which.
    """
    _check_kind(os.stat(path), path)


def read_plain(path: str | os.PathLike[str], most_bytes: int = -1) -> bytes:
    """Returns the content of a small plain file, within ANSWER_SECONDS.

    Example:
        >>> size = Path("note.txt").write_text("a text")
        >>> read_plain("note.txt"), read_plain("note.txt", 2)
        (b'a text', b'a ')

    Args:
        path: of the file.
        most_bytes: no more is read; below 0 for all.

    Raises:
        OSError: as of `open_plain`, or the file system does not answer.
    """

    def read() -> bytes:
        with open_plain(path) as file:
            return file.read(most_bytes)

    return look_at(os.fspath(path), read)


def read_text(path: str | os.PathLike[str]) -> str:
    """Returns the text of a small plain file; see `read_plain`.

    Raises:
        OSError: as of `read_plain`.
        UnicodeDecodeError: it is not text in UTF-8.
    """
    return read_plain(path).decode()


def look_at(key: str, ask: Callable[[], _Answer], seconds: float = ANSWER_SECONDS) -> _Answer:
    """Returns what `ask` returns or raises; in a process that never waits for files, `within` some seconds.

    Example:
        >>> look_at(".", lambda: os.path.isdir("."))
        True

    Args:
        key: what is asked about, such as a path.
        ask: reads or looks at files, and changes nothing.
        seconds: how long that may take.

    Raises:
        TimeoutError: see `within`.
    """
    return within(key, ask, seconds) if _never_waits else ask()


def within(key: str, ask: Callable[[], _Answer], seconds: float = ANSWER_SECONDS) -> _Answer:
    """Returns what `ask` returns or raises, which runs in a thread of its own that is left behind if it takes too long.

    A thread that waits for a file system that hangs cannot be ended. So while one waits, nothing else is asked under
    its key.

    Example:
        >>> within(".", lambda: os.path.isdir("."))
        True

    Args:
        key: what is asked about, such as a path.
        ask: reads or looks at files, and changes nothing.
        seconds: how long that may take.

    Raises:
        TimeoutError: there was no answer in time, now or before.
    """
    before = _UNANSWERED.get(key)
    if before is not None and not before.done():
        raise _no_answer(key)
    answer: Future[_Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name=f"asks {key}", daemon=True).start()
    wait([answer], seconds)
    if not answer.done():
        _UNANSWERED[key] = answer  # type: ignore[assignment]  # of any type
        answer.add_done_callback(lambda _: _UNANSWERED.pop(key, None))
        raise _no_answer(key)
    return answer.result()


def _no_answer(key: str) -> TimeoutError:
    return TimeoutError(errno.ETIMEDOUT, "its file system does not answer", key)


def _check_kind(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    kind = next((name for is_kind, name in _KINDS if is_kind(status.st_mode)), "something else")
    raise OSError(errno.EINVAL, f"it is {kind}, and must be a plain file", os.fspath(path))
