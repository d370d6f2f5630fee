"""Processes that compile, so that the compiler's memory and time are theirs.

Owns starting, waiting and ending; leaves what is compiled to the modules that they run.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from packhorse.compiling.caching import cache_folder, compiled_elsewhere
from packhorse.storage import hold_lock

_LOCK = "packhorse-compiling.lock"


def compile_in_children(module: str, commands: Sequence[Sequence[str]], *, in_background: bool = False) -> None:
    """Runs `python -m MODULE ARGUMENTS…` once for each command, all at once, and waits for them.

    Does nothing where the cache cannot be written. Of several processes with one cache, one does so at a time. What a
    process fails at, it says on stderr; whoever needs the kernel then compiles it.

    Args:
        module: that compiles what its arguments name.
        commands: the arguments of each process.
        in_background: whether they give way to everything else on this machine.
    """
    folder = cache_folder()
    if folder is None:
        return
    with compiled_elsewhere(), _alone(folder):
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", module, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                process_group=0,  # ^C in a terminal is the parent's
            )
            for command in commands
        ]
        try:
            if in_background:
                for process in processes:
                    os.setpriority(os.PRIO_PROCESS, process.pid, 19)
            for process in processes:
                process.wait()
        finally:
            for process in processes:
                process.kill()
                process.communicate()


def end_with_parent() -> None:
    """Ends this process as soon as the one that started it by `compile_in_children` ends."""

    def wait() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Waits for its turn among the processes that share a folder; where the folder takes no file, for nobody."""
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(hold_lock(folder / _LOCK))
        yield
