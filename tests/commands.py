"""`packhorse` commands in processes of their own, forked from one that has imported what they need.

Owns a session of its own for each, and reading what it wrote. Leaves servers to `tests.servers`, scripts of trainers to
`tests.scripts`, and commands that need no process of their own to the fixture `packhorse`.
"""

import os
import signal
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.warm import PACKHORSE, warm


@contextmanager
def running(*arguments, code=PACKHORSE, folder=".", **environment):
    """A command, or other code with these arguments, until the end of the block: the process, with `out` and `err`."""
    with started(
        warm(), *arguments, code=code, folder=os.path.abspath(folder), environment=os.environ | environment
    ) as it:
        yield it


@contextmanager
def started(process, *arguments, code, **options):
    """Code that `process` forks, in a session of its own; `out` and `err` return what it has written so far.

    Options are those of `Warm.start`. What still runs at the end of the block is killed, with its session.
    """
    with tempfile.TemporaryDirectory() as written:
        out, err = Path(written, "out"), Path(written, "err")
        out.touch()
        err.touch()
        forked = process.start(*map(str, arguments), out=out, err=err, code=code, session=True, **options)
        forked.out, forked.err = out.read_text, err.read_text
        try:
            yield forked
        finally:
            if forked.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(forked.pid, signal.SIGKILL)
                forked.wait(60)


def run(*arguments, timeout=120, **options):
    """Runs a command to its end; options as of `running`. Returns what `subprocess.run` does."""
    with running(*arguments, **options) as process:
        return ended(process, arguments, timeout)


def ended(process, arguments, timeout):
    """Waits for a process of `started`; returns what `subprocess.run` does."""
    status = process.wait(timeout)
    return subprocess.CompletedProcess(arguments, status, process.out(), process.err())
