"""Lines to stderr without waiting: if whoever reads the pipe has stopped, no request stops.

Owns the queue of lines, the thread that writes them, and counting those that find no room. Leaves the format of lines
to `logs`, and the lines on stdout to `packhorse.cli.serve`.
"""

import io
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable

MOST_LINES = 10_000
"""Most lines that wait to be written; more are left out. When a large run starts, it logs thousands in a second."""

LAST_LINES_SECONDS = 2.0
"""How long the end of the process waits for lines to be written."""


class Lines:
    """Writes lines to a descriptor, in a thread of its own and in their order. Safe to be used by many threads.

    Args:
        descriptor: the stream's file descriptor; the caller closes it.

    Attributes:
        num_left_out: lines that were not written.
        as_line: formats the sentence that says how many lines were left out, as the log formats its lines.
    """

    def __init__(self, descriptor: int) -> None:
        self.num_left_out = 0
        self.as_line: Callable[[str], str] = str
        self._descriptor = descriptor
        self._lines: queue.Queue[str] = queue.Queue(MOST_LINES)
        self._num_unreported = 0  # lines left out since the last one that had room
        self._lock = threading.Lock()  # held to count lines, and to start the thread
        self._thread: threading.Thread | None = None

    def put(self, line: str) -> None:
        """Adds a line, which may have line ends inside; if there is no room, leaves it out and counts it."""
        if self._thread is None or not self._thread.is_alive():  # threads do not survive a fork
            self._begin()
        with self._lock:
            if self._num_unreported:
                what = f"{self._num_unreported:,} lines are left out here: nobody read in time what this process writes"
                line = f"{self.as_line(what)}\n{line}"
            try:
                self._lines.put_nowait(line)
            except queue.Full:
                self.num_left_out += 1
                self._num_unreported += 1
            else:
                self._num_unreported = 0

    def flush(self, seconds: float = LAST_LINES_SECONDS) -> None:
        """Waits until all lines are written, for `seconds` at most."""
        until = time.monotonic() + seconds
        with self._lines.all_tasks_done:
            while self._lines.unfinished_tasks and (left := until - time.monotonic()) > 0:
                self._lines.all_tasks_done.wait(left)

    def _begin(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._write, name="lines", daemon=True)
                self._thread.start()

    def _write(self) -> None:
        while True:
            line = self._lines.get()
            try:
                self._write_whole(f"{line}\n".encode(errors="backslashreplace"))
            except OSError:  # nobody reads any more, or the disk is full
                with self._lock:
                    self.num_left_out += 1
            finally:
                self._lines.task_done()

    def _write_whole(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]


class LineHandler(logging.Handler):
    """Sends log records to `Lines`, and never raises for one that cannot be formatted."""

    def __init__(self, lines: Lines) -> None:
        super().__init__()
        self.lines = lines
        lines.as_line = self._line_of  # so that also the sentence about lines that were left out has the log's format

    def emit(self, record: logging.LogRecord) -> None:
        """Adds the record's line."""
        try:
            line = self.format(record)
        except Exception as error:
            line = f"a record of {record.name} cannot be formatted: {error!r}"
        self.lines.put(line)

    def flush(self) -> None:
        """Waits, for LAST_LINES_SECONDS at most, until all lines are written: logging calls it at its shutdown."""
        self.lines.flush()

    def _line_of(self, sentence: str) -> str:
        return self.format(logging.LogRecord(__name__, logging.WARNING, __file__, 0, sentence, (), None))


class LineStream(io.TextIOBase):
    """A text stream whose lines go to `Lines`: what Python itself and other packages print, such as warnings."""

    encoding, errors = "utf-8", "backslashreplace"

    def __init__(self, lines: Lines, descriptor: int) -> None:
        super().__init__()
        self._lines = lines
        self._descriptor = descriptor
        self._rest = ""
        self._lock = threading.Lock()

    def writable(self) -> bool:
        """Returns True."""
        return True

    def fileno(self) -> int:
        """Returns the descriptor of the stream that this one replaces."""
        return self._descriptor

    def write(self, text: str) -> int:
        """Adds the lines that are complete, and keeps the rest until its line ends."""
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._lines.put(line)
        return len(text)


_STDERR_DESCRIPTOR = 2

STDERR = Lines(_STDERR_DESCRIPTOR)
"""The lines that this process writes to stderr."""


def never_wait_for_stderr() -> None:
    """Replaces sys.stderr, so that no print of this process waits for whoever reads stderr."""
    if sys.stderr is sys.__stderr__ and sys.stderr is not None:  # nobody else, such as a test, has replaced it
        sys.stderr.flush()
        sys.stderr = LineStream(STDERR, _STDERR_DESCRIPTOR)
