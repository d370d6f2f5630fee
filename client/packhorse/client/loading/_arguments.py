"""Arguments that every dataset takes alike: where bins come from, and what is left out of them.

Owns what they mean; leaves their documentation to `PackedDataset`.
"""

import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection as ChildPipe
from typing import Any, NoReturn, TypeVar

from packhorse.client.api import NO_SKIPS, Client
from packhorse.client.connecting import open_client
from packhorse.client.streams.stream import StreamHeader
from packhorse.client.transport.access import NO_ACCESS, Access
from packhorse.client.transport.embedded import PREFIX
from packhorse.client.transport.grpc_channels import has_used_grpc
from packhorse.client.transport.memory_datasets import MemoryDatasets
from packhorse.client.transport.requests import shortened
from packhorse.client.transport.retries import policy_of
from packhorse.client.transport.targets import hosts_of
from packhorse.formats.asking import RetryPolicy
from packhorse.topology import Skips, checked_integer

TIMEOUT_SECONDS = 180.0  # beyond the time for which a client tries again by default


_Answer = TypeVar("_Answer")


def ask_in_child(question: Callable[[], _Answer], *, timeout_seconds: float = TIMEOUT_SECONDS) -> _Answer:
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


def _answer(question: Callable[[], Any], sender: ChildPipe) -> NoReturn:
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


Target = str | MemoryDatasets | Callable[[], Client]
Skip = Skips | str | Mapping[int, Skips | str]

_CHILD_SECONDS = 60.0
"""How much longer than a client tries a child process may take to ask."""


class Connection:
    """How each process reaches the service; it travels to workers by pickle.

    Args:
        target: what `connect` takes, or a function that returns a Client.
        timeout_seconds: as `connect` takes it.
        retry: as `connect` takes it.
        access: certificates and tokens; None for those of the environment.

    Raises:
        ValueError: it is none of these, no server could ever listen there, or a function is given with the others,
            which its Client knows.
    """

    def __init__(
        self,
        target: Target,
        timeout_seconds: float | None = None,
        retry: RetryPolicy | None = None,
        access: Access | None = None,
    ) -> None:
        _check_target(target)
        if access is not None and not isinstance(access, Access):
            raise ValueError(f"access must be an Access, e.g. Access(ca='ca.pem'), got {shortened(access)}")
        self._target = target
        self._access = access or NO_ACCESS
        self._retry = policy_of(timeout_seconds, retry)
        if callable(target) and (timeout_seconds, retry, access) != (None, None, None):
            raise ValueError(
                "timeout_seconds, retry and access are for a target; the function that is given returns a Client"
            )

    @property
    def where(self) -> str:
        """The target, or the name of the function, for messages."""
        target = self._target
        return getattr(target, "__qualname__", type(target).__qualname__) if callable(target) else str(target)

    def open(self) -> Client:
        """Returns a new client."""
        return self._target() if callable(self._target) else open_client(self._target, self._access, self._retry)

    def ask(self, question: Callable[[], _Answer]) -> _Answer:
        """Returns what `question` returns, without this process using gRPC where that can be avoided; see `_apart`."""
        if isinstance(self._target, MemoryDatasets) or str(self._target).startswith(PREFIX):
            return question()
        return ask_in_child(question, timeout_seconds=self._retry.deadline_seconds + _CHILD_SECONDS)


class SkipsByEpoch:
    """What each epoch leaves out.

    Example:
        >>> skips = SkipsByEpoch({3: "1200:1300"})
        >>> str(skips.of(3)), str(skips.of(4))
        ('1200:1300', '')

    Args:
        skip: positions to leave out of every epoch, or of some by their numbers.

    Raises:
        ValueError: a range is empty, or a text is no range.
    """

    def __init__(self, skip: Skip) -> None:
        self._of_all = NO_SKIPS if isinstance(skip, Mapping) else _skips(skip)
        self._of_some = _skips_of_epochs(skip) if isinstance(skip, Mapping) else {}

    def of(self, epoch: int) -> Skips:
        """Returns what one epoch leaves out."""
        return self._of_some.get(epoch, self._of_all)

    def check(self, epoch: int, header: StreamHeader) -> None:
        """Refuses what is asked for in an epoch and has no effect, or leaves nothing.

        Raises:
            ValueError: a range is beyond the epoch's end, or every bin is left out.
        """
        asked, left_out = self.of(epoch).ranges, header.skipped.ranges
        whole = header.num_bins + header.skipped.num_skipped
        for first, end in asked:
            if not any(first < other_end and other < end for other, other_end in left_out):
                raise ValueError(f"skip {first}:{end} is beyond the end of epoch {epoch}, which has {whole:,} bins")
        if asked and not header.num_bins:
            raise ValueError(f"skip {self.of(epoch)} leaves out all {whole:,} bins of epoch {epoch}; train on another")

    def __str__(self) -> str:
        """The ranges, by epoch where they differ; empty where nothing is left out."""
        if not self._of_some:
            return str(self._of_all)
        return "; ".join(f"{epoch}: {skips}" for epoch, skips in sorted(self._of_some.items()))


def checked_name(dataset: object) -> str:
    """Returns the name of a dataset; a ValueError where it is none."""
    if not isinstance(dataset, str) or not dataset:
        raise ValueError(f"dataset must be the dataset's name, got {shortened(dataset)}")
    return dataset


def checked_seed(seed: object) -> int:
    """Returns the seed of a run; a ValueError where it is none."""
    return checked_integer("seed", seed, 0, 2**64 - 1)


def checked_epoch(epoch: object) -> int:
    """Returns the number of an epoch; a ValueError where it is none."""
    return checked_integer("epoch", epoch, 0)


def _check_target(target: object) -> None:
    """Refuses what no server could ever listen at, before workers are started for it."""
    if isinstance(target, str):
        if not target.startswith(PREFIX):
            hosts_of(target)
    elif not isinstance(target, MemoryDatasets) and not callable(target):
        raise ValueError(
            f"target must be what `connect` takes, or a function that returns a Client; got {shortened(target)}"
        )


def _skips_of_epochs(given: Mapping[int, Skips | str]) -> dict[int, Skips]:
    return {checked_integer("an epoch of skip", epoch, 0): _skips(some) for epoch, some in given.items()}


def _skips(given: Skips | str) -> Skips:
    if isinstance(given, Skips):
        return given
    if not isinstance(given, str):
        raise ValueError(f"skip must be like '1200:1300', or a dict from epoch to such; got {shortened(given)}")
    return Skips.parse([given])
