"""Servers of tests: real processes, and the one that most of them are forked from."""

import os
import signal
import socket
import subprocess
import sys

from tests import faulty_server
from tests.faulty_server import Faults
from tests.waiting import wait_until
from tests.warm import START_SECONDS, warm

STOP_SECONDS = 30


def free_port():
    """A port of loopback that nobody listens on just now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """`packhorse serve` in a process of its own; it is started by making it, and again by `start`."""

    def __init__(self, root, *flags, listen="127.0.0.1:0", log, faults=None):
        self.root, self.flags, self.listen, self.log_path = root, flags, listen, log
        self.faults = Faults() if faults is None else faults
        self.process = None
        self.start()

    def start(self):
        """Starts it, on the address of last time if there was one, and waits until it listens."""
        arguments = [str(word) for word in ("--data-root", self.root, "--listen", self.listen, *self.flags)]
        self.log_path.touch()
        begin = self.log_path.stat().st_size
        environment = os.environ | self.faults.environment()
        if "--processes" in arguments:  # each is told how to count before it imports
            with self.log_path.open("ab") as log:
                command = [sys.executable, faulty_server.__file__, "packhorse.cli", "serve", *arguments]
                self.process = subprocess.Popen(
                    command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment
                )
        else:
            self.process = warm().serve(*arguments, log_path=self.log_path, environment=environment)
        self.target = self._announced("packhorse: listening on ", begin)
        self.listen = self.target

    def _announced(self, prefix, begin=0):
        def said():
            for line in self.log_path.read_bytes()[begin:].decode(errors="replace").splitlines(keepends=True):
                if line.startswith(prefix) and line.endswith("\n"):
                    return line.removeprefix(prefix).strip()
            status = self.process.poll()
            assert status is None, f"the server ended with {status} before {prefix!r}; it wrote:\n{self.log()}"
            return None

        return wait_until(said, START_SECONDS)

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
