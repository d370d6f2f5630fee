"""`packhorse` commands in processes of their own, forked from one that has imported what they need.

Owns a session of its own for each, and reading what it wrote. Leaves servers to `tests.servers`, and commands that need
no process of their own to the fixture `packhorse`.
"""

import os
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

from tests.servers import warm
from tests.warm import PACKHORSE

IN_A_SESSION = "import os; os.setsid()\n"


@contextmanager
def running(*arguments, code=PACKHORSE, folder=".", **environment):
    """A command, or other code with these arguments, until the end of the block: the process, with `out` and `err`."""
    with tempfile.TemporaryDirectory() as written:
        out, err = Path(written, "out"), Path(written, "err")
        out.touch()
        err.touch()
        process = warm().start(
            *map(str, arguments),
            out=out,
            err=err,
            environment=os.environ | environment,
            folder=os.path.abspath(folder),
            code=IN_A_SESSION + code,
        )
        process.out, process.err = out.read_text, err.read_text
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(60)


def run(*arguments, timeout=120, **options):
    """Runs a command to its end; options as of `running`. Returns what `subprocess.run` does."""
    with running(*arguments, **options) as process:
        status = process.wait(timeout)
        return subprocess.CompletedProcess(arguments, status, process.out(), process.err())
