"""A server in a process of its own, for the demo: started, killed and started again.

Owns the process; leaves serving to `packhorse serve`.
"""

import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import IO

_START_SECONDS = 120.0


class DemoServer:
    """`packhorse serve` on loopback.

    Args:
        data_root: folder of prepared datasets.
        log: file that takes the server's output.
    """

    def __init__(self, data_root: Path, log: Path) -> None:
        self._data_root = data_root
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self.target = "127.0.0.1:0"

    def start(self) -> float:
        """Starts the server, on the port that it had before, and returns the seconds until it listens.

        Raises:
            RuntimeError: it ended, or did not listen in time; the message holds what it said.
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

    def __enter__(self) -> "DemoServer":
        """Starts the server."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the server."""
        self._end(kill=False)

    def _announced(self, output: IO[str]) -> str:
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
        raise RuntimeError(f"the server did not start; its log ends with: {self._log.read_text()[-2000:]}")

    def _end(self, *, kill: bool) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill() if kill else process.terminate()
        try:
            process.wait(timeout=40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
