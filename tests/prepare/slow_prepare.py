"""`packhorse prepare` with one pass that tells when it runs and then goes on for ever; run as `CODE`."""

import os
import signal
import sys
import time
from typing import Any

import packhorse.cli.prepare as cli
from packhorse.cli import main
from packhorse.prepare import _sort, prepare

CODE = "from tests.prepare.slow_prepare import run; run()"
"""For `tests.commands`, with the step in the environment."""


def tell() -> None:
    """Says which process is in the step, in one write: workers share the pipe."""
    os.write(1, f"RUNNING {os.getpid()}\n".encode())


def slow_task(task: Any) -> Any:
    """Stands for a pass."""
    tell()
    while True:
        time.sleep(60)


def slow_plan(*arguments: Any, **options: Any) -> Any:
    PLAN(*arguments, **{**options, "time_limit_seconds": 0.01})  # no kernel is loaded or compiled from now on
    tell()
    return PLAN(*arguments, **{**options, "time_limit_seconds": 600})


PLAN = _sort.pack_histogram


def run() -> None:
    """Runs the command with one step replaced."""
    step = os.environ["SLOW_STEP"]
    if step == "plan":
        _sort.pack_histogram = slow_plan
    else:
        setattr(_sort, step, slow_task)
    assert cli.prepare is prepare
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
    sys.exit(main(prog_name="packhorse"))
