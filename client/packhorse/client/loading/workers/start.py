"""How workers are started: by fork, fork server or spawn. Refuses a script that each worker would run again.

Owns that choice. Leaves how workers handle signals to `workers.preemption`.
"""

import ast
import logging
import multiprocessing
import sys
from multiprocessing.context import BaseContext
from pathlib import Path
from types import FrameType

from packhorse.client.errors import PackhorseError
from packhorse.client.loading.workers.preemption import protected_fork_server
from packhorse.client.transport.grpc_channels import has_used_grpc

_LOG = logging.getLogger(__name__)


def context_of_workers(choice: BaseContext | str | None) -> BaseContext:
    """Returns the multiprocessing context for workers of this process.

    Args:
        choice: a context, or the name of a start method. None for a safe one: the platform's default, but a fork server
            instead of forking a process that has used gRPC, because its children sometimes stall.

    Raises:
        PackhorseError: each worker would run the main script again, from the top.
    """
    if isinstance(choice, BaseContext):
        context, why = choice, "it was given"
    else:
        default = multiprocessing.get_start_method()
        method, why = (choice, "it was given") if choice else (default, "it is the default")
        if choice is None and default == "fork" and has_used_grpc():
            method, why = "forkserver", "this process has used gRPC, and forked children would sometimes stall"
        context = protected_fork_server() if method == "forkserver" else multiprocessing.get_context(method)
    name = context.get_start_method()
    _LOG.info("workers are started by %r: %s", name, why)
    if name != "fork":
        _refuse_unguarded_script(name, why)
    return context


def _refuse_unguarded_script(method: str, why: str) -> None:
    """Raises a PackhorseError if workers are started at the top level of the main script.

    Workers that are not forked import the script first, and would start workers again. Code below
    `if __name__ == "__main__":` is not run by that import. Without the script's source, nothing is refused.

    Args:
        method: the start method, for the error.
        why: the reason for the method, for the error.
    """
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    line = None if path is None or hasattr(sys, "ps1") else _running_line(path)  # sys.ps1: it is interactive
    if path is None or line is None or not _runs_again(path, line):
        return
    raise PackhorseError(
        f"{path}, line {line}: workers are started by {method!r} ({why}), and each of them would run this script again "
        'from the top. Put what it does below `if __name__ == "__main__":`, or make batches in this process with '
        "num_workers=0"
    )


def _running_line(path: str) -> int | None:
    """Returns the line of the main script's top level that is running; None if its top level is done, or not there."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__":
            return frame.f_lineno if frame.f_code.co_filename == path else None
        frame = frame.f_back
    return None


def _runs_again(path: str, line: int) -> bool:
    """Whether a line of a script runs when a worker imports it: it is below no condition on `__name__`.

    False if the script's source cannot be read.
    """
    try:
        statements = ast.parse(Path(path).read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return False
    for statement in statements:
        if statement.lineno <= line <= (statement.end_lineno or line) and isinstance(statement, ast.If):
            names = {each.id for each in ast.walk(statement.test) if isinstance(each, ast.Name)}
            if "__name__" in names:
                return False
    return True
