"""The embedded target: the server's own backend in this process, without a network.

The only file of the client that reaches the server's packages, and only when an `embedded:` target is used, or when
rollouts are packed without a client.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from packhorse.client.errors import EXCEPTION_OF_REASON, NotImplementedByServerError, PackhorseError
from packhorse.client.transport.memory_datasets import MemoryDatasets
from packhorse.client.transport.transport import Method

if TYPE_CHECKING:
    from packhorse.server.base.faults import ServiceError
    from packhorse.server.datasets.memory_catalog import MemoryCatalog
import hashlib
import mmap

_ENTRY_BYTES = 16


class SharedSet:
    """A set of texts that forks share; forgets one where another takes its slot.

    Example:
        >>> known = SharedSet()
        >>> known.add("a")
        >>> "a" in known, "b" in known
        (True, False)
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def add(self, text: str) -> None:
        """Adds a text, for this process, those that it forked and those that it will fork."""
        entry, slot = _entry_of(text)
        self._memory[slot] = entry

    def __contains__(self, text: str) -> bool:
        """Whether any of these processes has added it. Half an entry, while one is being written, is none."""
        entry, slot = _entry_of(text)
        return self._memory[slot] == entry


def _entry_of(text: str) -> tuple[bytes, slice]:
    entry = hashlib.blake2b(text.encode(), digest_size=_ENTRY_BYTES).digest()
    first = int.from_bytes(entry[:8], "little") % (mmap.PAGESIZE // _ENTRY_BYTES) * _ENTRY_BYTES
    return entry, slice(first, first + _ENTRY_BYTES)


_Request = TypeVar("_Request")
_Response = TypeVar("_Response")

PREFIX = "embedded:"

_CHECKED = SharedSet()
"""Which folders' files matched their checksums, with the files' stamps: a worker need not read again what another read
in the epoch before."""


_PLANNED: "dict[object, MemoryCatalog]" = {}
"""What this process planned last, so that every epoch's client need not plan again; forked workers inherit it."""

_MOST_PLANNED = 8


class _InThisProcess:
    """Answers from an object that has some of the service's methods, however long it takes.

    Args:
        target: what `connect` was given.
        methods: has the methods, by their names.
        fault: what they raise.
    """

    has_answered = True

    def __init__(self, target: str, methods: object, fault: "type[ServiceError]") -> None:
        self.target = target
        self._methods = methods
        self._fault = fault

    def answer(
        self, method: Method[_Request, _Response], request: _Request, timeout_seconds: float = math.inf
    ) -> _Response:
        """Returns the one answer to a request."""
        with self._client_errors():
            answer: _Response = self._of(method)(request)
            return answer

    def stream(
        self, method: Method[_Request, _Response], request: _Request, timeout_seconds: float = math.inf
    ) -> Iterator[_Response]:
        """Yields the messages that answer a request, or an iterator of requests."""
        with self._client_errors():
            yield from self._of(method)(request)

    def close(self) -> None:
        """Nothing to let go of."""

    def _of(self, method: Method[Any, Any]) -> Any:
        try:
            return getattr(self._methods, method.name)
        except AttributeError:
            raise NotImplementedByServerError(
                f"{method.rpc} needs a dataset: connect to embedded:DIR, or to a server"
            ) from None

    @contextmanager
    def _client_errors(self) -> Iterator[None]:
        try:
            yield
        except self._fault as error:
            raise EXCEPTION_OF_REASON[error.reason](error.message, error.metadata) from None


class EmbeddedTransport(_InThisProcess):
    """Answers from the prepared datasets below a folder, each of which is opened when it is asked for.

    A dataset is opened and compared with its checksums once in this process, while its files stay as they are; what
    this process forks knows of the comparison.

    Args:
        target: embedded:DIR.

    Raises:
        PackhorseError: the server's packages are not installed, or no dataset is there.
    """

    def __init__(self, target: str) -> None:
        try:
            from packhorse.server.base.faults import ServiceError
            from packhorse.server.datasets.memory_catalog import LazyCatalog
            from packhorse.server.datasets.mixtures import Mixtures
            from packhorse.server.methods.backend import Backend
        except ModuleNotFoundError as error:
            raise PackhorseError(
                f"embedded: targets need {error.name}; install packhorse[server] beside the client"
            ) from None
        if target == PREFIX:
            raise PackhorseError("embedded: names no folder; give embedded:DIR, e.g. embedded:datasets")
        try:
            self._backend = Backend(Mixtures(LazyCatalog(target.removeprefix(PREFIX), _CHECKED)))
        except ValueError as error:
            raise PackhorseError(str(error)) from None
        super().__init__(target, self._backend, ServiceError)


class MemoryTransport(_InThisProcess):
    """Answers from datasets that are planned here, once in this process.

    Args:
        datasets: what `connect` was given.

    Raises:
        PackhorseError: the server's packages are not installed.
        ValueError: an option of the plan, or a length, is not as it must be.
    """

    def __init__(self, datasets: MemoryDatasets) -> None:
        try:
            from packhorse.server.base.faults import ServiceError
            from packhorse.server.datasets.memory_catalog import MemoryCatalog
            from packhorse.server.methods.backend import Backend
        except ModuleNotFoundError as error:
            raise PackhorseError(
                f"MemoryDatasets need {error.name}; install packhorse[server] beside the client"
            ) from None
        if datasets.key not in _PLANNED:
            _PLANNED[datasets.key] = MemoryCatalog(datasets.lengths, datasets.options)
            while len(_PLANNED) > _MOST_PLANNED:
                _PLANNED.pop(next(iter(_PLANNED)))
        super().__init__("memory:" + ",".join(datasets.lengths), Backend(_PLANNED[datasets.key]), ServiceError)


class EmbeddedPlanner(_InThisProcess):
    """Packs lengths at once, and nothing else: what needs no dataset needs no folder.

    Raises:
        PackhorseError: the server's packages are not installed.
    """

    def __init__(self) -> None:
        try:
            import packhorse.server.methods.pack as pack
            from packhorse.server.base.faults import ServiceError
        except ModuleNotFoundError as error:
            raise PackhorseError(
                f"packing in this process needs {error.name}: pass client=connect(…), or install packhorse[server] "
                "beside the client"
            ) from None
        super().__init__(PREFIX, pack, ServiceError)
