"""`DemoServer`: a process of `packhorse serve` that the demo starts, kills and starts again on the same port.

Owns waiting until the server listens. Leaves when it is killed to `commands/demo`.
"""

import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Self

_START_SECONDS = 600.0
"""The longest time that the server may take to start."""
_END_SECONDS = 40.0
"""The longest time that it may take to end, before it is killed."""
_LOG_CHARACTERS = 2000
"""Characters from the end of its log that an error shows."""


class DemoServer:
    """A process of `packhorse serve` on this machine, which can be killed and started again on the same port.

    Args:
        data_root: folder of prepared datasets.
        log: file to which the server's log is appended.
    """

    def __init__(self, data_root: Path, log: Path) -> None:
        self._data_root = data_root
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self.target = "127.0.0.1:0"
        """The server's address; before the first start its port is 0, for any free one."""

    def start(self) -> float:
        """Starts the server, on the port that it had before, and returns the seconds until it listens.

        Raises:
            RuntimeError: the server ended, or did not listen in time; the message has the end of its log.
        """
        started = time.perf_counter()
        command = [sys.executable, "-m", "packhorse.cli", "serve", "--data-root", str(self._data_root)]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*command, "--listen", self.target], stdout=subprocess.PIPE, stderr=log, text=True
            )
        output = self._process.stdout
        assert output is not None
        self.target = self._announced(output)
        return time.perf_counter() - started

    def kill(self) -> None:
        """Ends the server at once, as a crash would (SIGKILL)."""
        self._end(kill=True)

    def __enter__(self) -> Self:
        """Starts the server."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the server."""
        self._end(kill=False)

    def _announced(self, output: IO[str]) -> str:
        """Reads the address from the line "listening on …", the last that a server prints.

        Kills a server that does not print it in time.
        """
        process = self._process
        assert process is not None
        watchdog = threading.Timer(_START_SECONDS, process.kill)
        watchdog.start()
        try:
            for line in output:
                if found := re.search(r"listening on (\S+)", line):
                    return found[1]
        finally:
            watchdog.cancel()
        self._end(kill=True)
        raise RuntimeError(f"the server did not start; its log ends with: {self._log.read_text()[-_LOG_CHARACTERS:]}")

    def _end(self, *, kill: bool) -> None:
        """Ends the process, if there is one: at once, or after it has had time to finish."""
        process, self._process = self._process, None
        if process is None:
            return
        if kill:
            process.kill()
        else:
            process.terminate()
        try:
            process.wait(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
