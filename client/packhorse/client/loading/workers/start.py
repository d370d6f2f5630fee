"""How workers are started, and the refusal of a script that would start itself again in each of them.

Owns that choice; leaves what workers do with signals to `workers.preemption`.
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


def context_of_workers(given: BaseContext | str | None) -> BaseContext:
    """Returns how to start workers from this process, as it is now.

    Args:
        given: what the user chose; None for a safe choice: the platform's default, but never a fork of a process that
            has used gRPC, whose children sometimes stall.

    Raises:
        PackhorseError: each worker would run the main script again, from the top.
    """
    if isinstance(given, BaseContext):
        context, why = given, "it was given"
    else:
        default = multiprocessing.get_start_method()
        method, why = given or default, "it was given" if given else "it is the default"
        if given is None and default == "fork" and has_used_grpc():
            method, why = "forkserver", "this process has used gRPC, and forked children would sometimes stall"
        context = protected_fork_server() if method == "forkserver" else multiprocessing.get_context(method)
    name = context.get_start_method()
    _LOG.info("workers are started by %r: %s", name, why)
    if name != "fork":
        _refuse_unguarded_script(name, why)
    return context


def _refuse_unguarded_script(method: str, why: str) -> None:
    """Refuses to start workers from the top level of a script, which each of them imports first."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and not (
        frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__"
    ):
        frame = frame.f_back
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    if frame is None or path is None or frame.f_code.co_filename != path or hasattr(sys, "ps1"):
        return
    line = frame.f_lineno
    try:
        statements = ast.parse(Path(path).read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return
    for statement in statements:
        if statement.lineno <= line <= (statement.end_lineno or line) and isinstance(statement, ast.If):
            names = {each.id for each in ast.walk(statement.test) if isinstance(each, ast.Name)}
            if "__name__" in names:
                return
    raise PackhorseError(
        f"{path}, line {line}: workers are started by {method!r} ({why}), and each of them would run this script again "
        'from the top. Put what it does below `if __name__ == "__main__":`, or make batches in this process with '
        "num_workers=0"
    )
