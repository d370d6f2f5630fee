"""Scripts in processes of their own, forked from one that has imported torch and `packhorse.client`.

Owns the file that each is. A script is `__main__` and ends as one that Python was given: what it leaves behind is
cleared away by the interpreter. Leaves the process that they are forked from to `tests.warm`.
"""

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

from tests.commands import ended, started
from tests.warm import warm


@contextmanager
def running(code, *arguments):
    """A script with these arguments until the end of the block: the process, with `out` and `err`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "script.py")
        path.write_text(code)  # workers that are not forked import it
        options = {"path": path, "folder": os.getcwd(), "environment": dict(os.environ)}
        with started(warm("trainer"), *arguments, code=code, **options) as process:
            yield process


def run(code, *arguments, timeout=120):
    """Runs a script to its end, with these arguments. Returns what `subprocess.run` does."""
    with running(code, *arguments) as process:
        return ended(process, arguments, timeout)
