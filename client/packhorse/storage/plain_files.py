"""Reading files that users name without waiting for ever, even if the name is a pipe, or its file system hangs.

Owns two safeguards: only plain files are opened, and a server gives up if a file system does not answer in time. Leaves
what a file says to its reader, and noticing that it changed to `watched`.
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

_unanswered: "dict[str, Future[object]]" = {}
"""Key of a question → its answer, for questions that had no answer in time and still have a thread that waits."""

os.register_at_fork(after_in_child=_unanswered.clear)  # a child has none of these threads

_never_waits = False
"""Whether `look_at` gives up in time; see `never_wait_for_files`."""


def never_wait_for_files() -> None:
    """Makes every `look_at` in this process give up in time. Servers call it, because clients wait for them.

    Without it, in a command or a training process, `look_at` is a plain call: nobody else waits, and a thread for each
    look would take longer than opening a dataset.
    """
    global _never_waits
    _never_waits = True


def open_plain(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Opens a plain file for reading, and refuses anything else: opening a pipe would wait for a writer.

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
    # O_NONBLOCK and a second check, because the file may have become a pipe since the first one.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check_kind(os.fstat(descriptor), path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def check_plain(path: str | os.PathLike[str]) -> None:
    """Refuses anything but a plain file, before a library opens the file by itself.

    Example:
        >>> check_plain(".")
        Traceback (most recent call last):
            ...
        IsADirectoryError: [Errno 21] Is a directory: '.'

    Raises:
        OSError: it is something else, or missing; `strerror` says which.
    """
    _check_kind(os.stat(path), path)


def read_plain(path: str | os.PathLike[str], most_bytes: int = -1) -> bytes:
    """Returns the content of a small plain file; in a server within ANSWER_SECONDS, see `look_at`.

    Example:
        >>> size = Path("note.txt").write_text("a text")
        >>> read_plain("note.txt"), read_plain("note.txt", 2)
        (b'a text', b'a ')

    Args:
        path: path of the file.
        most_bytes: how many bytes are read at most; -1 for all.

    Raises:
        OSError: see `open_plain`; or the file system does not answer.
    """

    def read() -> bytes:
        with open_plain(path) as file:
            return file.read(most_bytes)

    return look_at(os.fspath(path), read)


def read_text(path: str | os.PathLike[str]) -> str:
    """Returns the text of a small plain file; see `read_plain`.

    Raises:
        OSError: see `read_plain`.
        UnicodeDecodeError: it is not text in UTF-8.
    """
    return read_plain(path).decode()


def look_at(key: str, ask: Callable[[], _Answer], seconds: float = ANSWER_SECONDS) -> _Answer:
    """Calls `ask` and returns its result; in a process that called `never_wait_for_files`, through `within`.

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
    """Calls `ask` in a new thread, and returns what it returns or raises what it raises, within some seconds.

    A thread that waits for a hanging file system cannot be ended, so it is left behind. Until it ends, every further
    call with the same key fails at once: a path costs one thread, however often somebody asks.

    Example:
        >>> within(".", lambda: os.path.isdir("."))
        True

    Args:
        key: what is asked about, such as a path.
        ask: reads or looks at files, and changes nothing.
        seconds: how long that may take.

    Raises:
        TimeoutError: there was no answer in time, or a call with the same key still waits for one.
    """
    earlier = _unanswered.get(key)
    if earlier is not None and not earlier.done():
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
        _unanswered[key] = answer  # type: ignore[assignment]  # of any type
        answer.add_done_callback(lambda _: _unanswered.pop(key, None))
        raise _no_answer(key)
    return answer.result()


def _no_answer(key: str) -> TimeoutError:
    """Returns the error of a file system that does not answer."""
    return TimeoutError(errno.ETIMEDOUT, "its file system does not answer", key)


def _check_kind(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    """Raises an OSError, with the path, unless `status` is a plain file's."""
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    kind = next((name for is_kind, name in _KINDS if is_kind(status.st_mode)), "something else")
    raise OSError(errno.EINVAL, f"it is {kind}, and must be a plain file", os.fspath(path))
