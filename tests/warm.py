"""Commands and scripts that start at once: forked from a process that has imported what they need.

Owns that process, run as `python tests/warm.py server` (`packhorse serve`, `prepare` and all kernels) or `trainer`
(torch and `packhorse.client`), and `Forked`, which stands for one of its children as a Popen would. Importing takes a
start most of two seconds of a core, and the tests start hundreds. Leaves what a test says of a server to
`tests.servers`, of another command to `tests.commands`, and of a trainer's script to `tests.scripts`.
"""

import gc
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import types
from pathlib import Path

PACKHORSE = "from packhorse.cli import main; main(prog_name='packhorse')"
START_SECONDS = 200  # compiling the kernels on a busy machine included

_warm = {}


def warm(imports="server"):
    """The process that this one's commands ("server") or scripts ("trainer") are forked from; the first starts it."""
    if imports not in _warm:
        _warm[imports] = Warm(imports)
    return _warm[imports]


def close():
    """Ends what commands and scripts were forked from."""
    for each in _warm.values():
        each.close()


class Warm:
    """The process, and what its children came to."""

    def __init__(self, imports="server"):
        self._process = subprocess.Popen(
            [sys.executable, __file__, imports], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._told = threading.Condition()
        self._started, self._running = [], {}
        threading.Thread(target=self._listen, daemon=True).start()

    def serve(self, *arguments, log_path, environment):
        """Starts `packhorse serve` with these arguments and variables; it writes to the end of a file."""
        return self.start("serve", *arguments, out=log_path, err=log_path, environment=environment, folder=os.getcwd())

    def start(self, *arguments, out, err, environment, folder, code=PACKHORSE, path="packhorse", session=False):
        """Starts code with these arguments and variables in a folder; it writes to the ends of two files.

        Code that is the text of a file at `path` runs as `python PATH` would; `session` gives it a session of its own.
        """
        paths = {"out": str(out), "err": str(err), "folder": str(folder), "path": str(path)}
        request = {"arguments": arguments, "environment": environment, "code": code, "session": session} | paths
        with self._told:
            number = len(self._started)
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            assert self._told.wait_for(lambda: len(self._started) > number, START_SECONDS), "nothing was started"
            return self._started[number]

    def close(self):
        """Ends the process, also where a child of it hangs; its children go on."""
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _listen(self):
        for line in self._process.stdout:
            kind, pid, *status = line.split()
            with self._told:
                if kind == "started":
                    forked = self._running[pid] = Forked(int(pid), self._told)
                    self._started.append(forked)
                else:
                    self._running.pop(pid).status = int(status[0])
                self._told.notify_all()


class Forked:
    """A command in a process of its own, with what the tests use of Popen.

    It keeps its own exit status: once that is known, the system gives the same pid to a later process.
    """

    def __init__(self, pid, told):
        self.pid, self.status, self._told = pid, None, told

    def poll(self):
        """The exit status, or None while it runs."""
        with self._told:
            return self.status

    def wait(self, timeout):
        """Waits for the exit status."""
        with self._told:
            if not self._told.wait_for(lambda: self.status is not None, timeout):
                raise subprocess.TimeoutExpired("packhorse", timeout)
            return self.status

    def send_signal(self, number):
        """Sends a signal to a process that runs."""
        if self.poll() is None:
            os.kill(self.pid, number)


def _import_server():
    import pyarrow.parquet  # noqa: F401 (what most inputs are)

    import packhorse.cli.prepare
    import packhorse.server.app.running  # noqa: F401 (what every server needs)
    from packhorse.server.base import kernels, shrinking_files

    kernels.compile_kernels()
    shrinking_files.survive_shrinking_files()  # compiled by every server, and not kept on disk


def _import_trainer():
    exec("from packhorse.client import *", {})  # all of it, and torch
    from packhorse.epoch import compile_kernels

    compile_kernels()


def main(imports):
    """Forks a command or script for each line of the standard input, and writes pids and exit statuses."""
    {"server": _import_server, "trainer": _import_trainer}[imports]()
    gc.collect()
    gc.freeze()  # no collection in a child need walk, and so copy, what was imported here
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        selector.register(reading, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj == reading:
                    os.read(reading, 4096)
                    _tell_exits()
                    continue
                line = b""  # a whole one: the next request comes when this one is answered
                while not line.endswith(b"\n"):
                    part = os.read(0, 1 << 16)
                    if not part:
                        return
                    line += part
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    selector.close()
                    _become(json.loads(line), is_command=imports == "server")
                print("started", pid, flush=True)


def _tell_exits():
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        print("ended", pid, os.waitstatus_to_exitcode(status), flush=True)


def _become(request, *, is_command):
    if request["session"]:
        os.setsid()
    out, err = (os.open(request[name], os.O_WRONLY | os.O_APPEND) for name in ("out", "err"))
    nothing = os.open(os.devnull, os.O_RDONLY)
    for there, number in ((nothing, 0), (out, 1), (err, 2)):
        os.dup2(there, number)
    os.closerange(3, max(out, err, nothing) + 20)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    if is_command:
        _suffer_faults(is_server=request["arguments"][:1] == ["serve"])
    sys.argv = [request["path"], *request["arguments"]]
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    if os.path.isabs(request["path"]):
        sys.path[0] = os.path.dirname(request["path"])
        module.__file__ = request["path"]
    exec(compile(request["code"], request["path"], "exec"), module.__dict__)
    sys.exit()


def _suffer_faults(*, is_server):
    from tests.faulty_server import Faults, apply

    from packhorse.server.base import shrinking_files

    apply(Faults.from_environment())
    if not is_server:  # no other command outlives a SIGBUS
        signal.signal(signal.SIGBUS, signal.SIG_DFL)
        shrinking_files._HANDLERS.clear()


if __name__ == "__main__":
    # Started as a file, this module's folder is first among those that are imported from.
    sys.path[0] = str(Path(__file__).parents[1])
    main(sys.argv[1])
