"""Scripts in processes of their own that start at once: forked from one that has imported torch and `packhorse.client`.

Owns that process, run as `python tests/scripts.py`, and `Script`, which stands for one of its grandchildren as a Popen
would. Importing torch takes a script two seconds of a core. A script is `__main__` and ends as one that Python was
given: what it leaves behind is cleared away by the interpreter. Leaves servers to `tests.servers`.
"""

import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
from pathlib import Path

START_SECONDS = 200  # compiling the kernels on a busy machine included


@functools.cache
def _warm():
    """Our end of a socket: whoever reads the other forks a script for each request, until we end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()])
    return ours


class Script:
    """Code that runs as a file of its own in a session of its own; `out` and `err` are what it has written so far."""

    def __init__(self, code, *arguments, environment=None):
        self._folder = tempfile.TemporaryDirectory()
        path, out, err = (Path(self._folder.name, name) for name in ("script.py", "out", "err"))
        path.write_text(code)
        request = {
            "path": str(path),
            "arguments": list(map(str, arguments)),
            "environment": dict(os.environ if environment is None else environment),
            "folder": os.getcwd(),
        }
        reading, writing = os.pipe()
        with out.open("wb") as out_file, err.open("wb") as err_file:
            given = [out_file.fileno(), err_file.fileno(), writing]
            socket.send_fds(_warm(), [json.dumps(request).encode()], given)
        os.close(writing)
        self.out, self.err = out.read_text, err.read_text
        self._told = os.fdopen(reading, "r", buffering=1)
        self.pid, self.returncode = self._number(START_SECONDS), None

    def wait(self, timeout):
        """The exit status, as Popen gives it."""
        if self.returncode is None:
            self.returncode = self._number(timeout)
        return self.returncode

    def kill(self):
        """SIGKILL to its process only."""
        os.kill(self.pid, signal.SIGKILL)

    def _number(self, seconds):
        if not select.select([self._told], [], [], seconds)[0]:
            raise subprocess.TimeoutExpired("a script", seconds)
        return int(self._told.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.wait(60)
        self._told.close()
        self._folder.cleanup()


def run(code, *arguments, timeout=120, environment=None):
    """Runs a script to its end, with these arguments and variables. Returns what `subprocess.run` does."""
    with Script(code, *arguments, environment=environment) as script:
        status = script.wait(timeout)
        return subprocess.CompletedProcess(arguments, status, script.out(), script.err())


def _serve(requests):
    """Forks what waits for a script and tells its process id and exit status, for each request."""
    exec("from packhorse.client import *", {})  # all of it, and torch
    from packhorse.epoch import compile_kernels

    compile_kernels()
    gc.collect()
    gc.freeze()  # no collection in a script need walk, and so copy, what was imported here
    minders = set()
    while True:
        text, files, *_ = socket.recv_fds(requests, 1 << 20, 3)
        minders = {pid for pid in minders if os.waitpid(pid, os.WNOHANG) == (0, 0)}
        if not text:
            return
        minder = os.fork()
        if minder:
            minders.add(minder)
            for file in files:
                os.close(file)
            continue
        requests.close()
        *written, told = files
        pid = os.fork()
        if pid == 0:
            os.close(told)
            _become(json.loads(text), *written)
            return
        os.write(told, f"{pid}\n".encode())
        os.write(told, f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n".encode())
        os._exit(0)


def _become(request, out, err):
    """Runs a script as `python PATH` would; what it raises ends the interpreter."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, there in enumerate((nothing, out, err)):
        os.dup2(there, number)
        os.close(there)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    path = request["path"]
    sys.argv = [path, *request["arguments"]]
    sys.path[0] = str(Path(path).parent)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = path
    exec(compile(Path(path).read_text(), path, "exec"), main.__dict__)


if __name__ == "__main__":
    # Started as a file, this module's folder is first among those that are imported from.
    sys.path[0] = str(Path(__file__).parents[1])
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        _serve(requests)
