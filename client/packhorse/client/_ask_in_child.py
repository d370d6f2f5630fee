"""`ask_in_child`: a child process asks a server a question, so that this process uses no gRPC, and may fork.

Leaves which targets need a child process to `connecting`, whose `Server` decides it.
"""

import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NoReturn, TypeVar

from packhorse.client.transport.grpc_channels import has_used_grpc

_Answer = TypeVar("_Answer")


def ask_in_child(question: Callable[[], _Answer], *, timeout_seconds: float = 180.0) -> _Answer:
    """Returns the result of `question`, which runs in a forked child, so that this process does not use gRPC.

    Forks of a process that has used gRPC may hang; a DataLoader forks its workers. `question` runs in this process if
    the process has used gRPC already, if the platform has no fork, or if JAX is loaded, whose threads do not survive
    a fork.

    Args:
        question: a function whose result can be pickled, and which changes nothing in this process.
        timeout_seconds: how long the child may take.

    Raises:
        TimeoutError: the child gave no answer in time.
        RuntimeError: the child died (also of an answer that cannot be pickled), or its exception cannot be pickled.
        Exception: what `question` raised.
    """
    if has_used_grpc() or not hasattr(os, "fork") or "jax" in sys.modules:
        return question()
    receiver, sender = Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        _answer(question, sender)
    sender.close()
    try:
        if not receiver.poll(timeout_seconds):
            raise TimeoutError(f"the child process that asked the server gave no answer within {timeout_seconds} s")
        is_answer, outcome = pickle.loads(receiver.recv_bytes())
    except EOFError:
        raise RuntimeError("the child process that asked the server died") from None
    finally:
        receiver.close()
        with suppress(ProcessLookupError, ChildProcessError):  # something else may collect this process's children
            os.kill(child, signal.SIGKILL)  # it is done, unless it took too long
            os.waitpid(child, 0)
    if not is_answer:
        raise outcome
    return outcome


def _answer(question: Callable[[], Any], sender: Connection) -> NoReturn:
    """Runs in the child: sends (True, answer) or (False, exception), then ends without the parent's clean-up."""
    try:
        try:
            outcome = (True, question())
        except BaseException as error:
            outcome = (False, _picklable(error))
        sender.send_bytes(pickle.dumps(outcome))
    finally:
        os._exit(0)


def _picklable(error: BaseException) -> BaseException:
    """Returns the exception, or a RuntimeError with its text if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever its class's own pickling raises
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
