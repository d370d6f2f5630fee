"""Questions asked in a child process.

A process that has used gRPC should not fork dataloader workers any more: now and then one of them stalls for many
seconds. So whoever only wants a number from the server lets a short-lived child ask for it. Owns that child; leaves
the question to its caller, and the knowledge of what this process has used to `transport.grpc_channels`.
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

TIMEOUT_SECONDS = 180.0  # beyond the time for which a client tries again by default


def ask_apart(question: Callable[[], _Answer], *, timeout_seconds: float = TIMEOUT_SECONDS) -> _Answer:
    """Returns what `question` returns, asked in a forked child while this process has not used gRPC itself.

    Where it has, where there is no fork, and where JAX runs, whose threads no fork survives, the question is asked
    right here.

    Args:
        question: need not be picklable; its answer is. Objects that it changes, it changes in the child.
        timeout_seconds: how long the child may take.

    Raises:
        TimeoutError: the child gave no answer in time.
        RuntimeError: the child died, or its exception cannot be pickled.
        Exception: whatever the question raised.
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
            raise TimeoutError(f"the server was asked in a child process, which gave no answer in {timeout_seconds} s")
        is_answer, outcome = pickle.loads(receiver.recv_bytes())
    except EOFError:
        raise RuntimeError("the server was asked in a child process, which died") from None
    finally:
        receiver.close()
        with suppress(ProcessLookupError, ChildProcessError):  # where someone else collects this process's children
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    if not is_answer:
        raise outcome
    return outcome


def _answer(question: Callable[[], Any], sender: Connection) -> NoReturn:
    """Sends the answer or the exception, and ends the child at once: nothing of its parent's is to be cleaned up."""
    try:
        try:
            outcome = (True, question())
        except BaseException as error:
            outcome = (False, _picklable(error))
        sender.send_bytes(pickle.dumps(outcome))
    finally:
        os._exit(0)


def _picklable(error: BaseException) -> BaseException:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever its class's own pickling raises
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
