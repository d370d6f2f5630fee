"""Servers of tests: real processes, and the one that most of them are forked from."""

import functools
import os
import signal
import socket
import subprocess
import sys
import time

PYTHONPATH = os.environ.get("PYTHONPATH")
START_SECONDS = 200  # compiling the kernels on a busy machine included
STOP_SECONDS = 30


def free_port():
    """A port of loopback that nobody listens on just now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@functools.cache
def warm():
    """The process that this one's servers are forked from, started for the first of them."""
    from tests.warm import Warm

    return Warm(START_SECONDS)


class Server:
    """`packhorse serve` in a process of its own; it is started by making it, and again by `start`."""

    def __init__(self, root, *flags, listen="127.0.0.1:0", log):
        self.root, self.flags, self.listen, self.log_path = root, flags, listen, log
        self.process = None
        self.start()

    def start(self):
        """Starts it, on the address of last time if there was one, and waits until it listens."""
        arguments = [str(word) for word in ("--data-root", self.root, "--listen", self.listen, *self.flags)]
        self.log_path.touch()
        begin = self.log_path.stat().st_size
        # Processes are told how to count before they import, and fixtures say by PYTHONPATH what else is imported.
        if "--processes" in arguments or os.environ.get("PYTHONPATH") != PYTHONPATH:
            with self.log_path.open("ab") as log:
                command = [sys.executable, "-m", "packhorse.cli", "serve", *arguments]
                self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        else:
            self.process = warm().serve(*arguments, log_path=self.log_path)
        self.target = self._announced("packhorse: listening on ", begin)
        self.listen = self.target

    def _announced(self, prefix, begin=0):
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            for line in self.log_path.read_bytes()[begin:].decode(errors="replace").splitlines(keepends=True):
                if line.startswith(prefix) and line.endswith("\n"):
                    return line.removeprefix(prefix).strip()
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"the server did not announce {prefix!r}; it wrote:\n{self.log()}")

    @property
    def metrics_url(self):
        return self._announced("packhorse: metrics at ")

    @property
    def pid(self):
        return self.process.pid

    def log(self):
        return self.log_path.read_text(errors="replace")

    def kill(self):
        """SIGKILL: no goodbye."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(STOP_SECONDS)

    def terminate(self):
        """SIGTERM, without waiting."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self, seconds=STOP_SECONDS):
        """Returns the exit status."""
        return self.process.wait(seconds)

    def stop(self):
        """Ends it by all means, and fails where SIGTERM was not enough."""
        if self.process is None or self.process.poll() is not None:
            return
        self.terminate()
        try:
            self.wait()
        except subprocess.TimeoutExpired:
            self.kill()
            raise
