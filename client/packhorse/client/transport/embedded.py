"""Targets in this process: the server's backend over a folder, or over datasets planned from lengths in memory.

Owns the transports of this process. It is the only file of the client that imports the server's packages, and does so
only if an `embedded:` target or `MemoryDatasets` is used, or if rollouts are packed without a client. Leaves what
`MemoryDatasets` hold to `client/memory_datasets`, and servers to `transport.grpc_channels`.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from packhorse.client.errors import EXCEPTION_OF_REASON, NotImplementedByServerError, PackhorseError, named_field
from packhorse.client.memory_datasets import MemoryDatasets
from packhorse.client.transport.methods import Method, no_deadline
from packhorse.storage import BoundedCache, SharedSet

if TYPE_CHECKING:
    from packhorse.server.base.faults import ServiceError
    from packhorse.server.datasets.memory_catalog import MemoryCatalog

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")

PREFIX = "embedded:"
"""How the target of a folder begins."""

_CHECKED_FOLDERS = SharedSet()
"""Folders whose files matched their checksums, with the files' stamps, so that workers need not check every epoch."""

_MOST_CATALOGS = 8
"""How many different `MemoryDatasets` this process remembers the plans of."""
_CATALOGS: "BoundedCache[object, MemoryCatalog]" = BoundedCache(_MOST_CATALOGS)
"""The last plans of `MemoryDatasets`: a client is made for each epoch, and forked workers use their parent's plans."""


class _InThisProcess:
    """A transport that calls methods of an object in this process, without a time limit.

    Args:
        target: the target that `connect` was given.
        methods: an object with some of the service's methods, under the names of `Method`: the server's Backend, or a
            module of functions.
        server_error: the exception that the methods raise; it becomes the client's exception of the same reason.
    """

    has_answered = True  # always there: a client of this process never waits for a server

    def __init__(self, target: str, methods: object, server_error: "type[ServiceError]") -> None:
        self.target = target
        self._methods = methods
        self._server_error = server_error

    def answer(
        self, method: Method[_Request, _Response], request: _Request, timeout_seconds: float = math.inf
    ) -> _Response:
        """Returns the one answer to a request."""
        with self._client_errors():
            answer: _Response = self._function_of(method)(request)
            return answer

    def stream(
        self, method: Method[_Request, _Response], request: _Request, seconds_left: Callable[[], float] = no_deadline
    ) -> Iterator[_Response]:
        """Yields the messages that answer a request, or an iterator of requests."""
        with self._client_errors():
            yield from self._function_of(method)(request)

    def close(self) -> None:
        """Does nothing: there are no connections."""

    def _function_of(self, method: Method[Any, Any]) -> Any:
        """Returns the object's function for a method; a NotImplementedByServerError if it has none.

        Only `EmbeddedPlanner` lacks some: those of a dataset.
        """
        try:
            return getattr(self._methods, method.name)
        except AttributeError:
            raise NotImplementedByServerError(
                f"{method.rpc} needs a dataset: connect to embedded:DIR, or to a server"
            ) from None

    @contextmanager
    def _client_errors(self) -> Iterator[None]:
        """Turns the server's exceptions, raised in this context, into the client's."""
        try:
            yield
        except self._server_error as error:
            message = named_field(error.message, error.metadata)
            raise EXCEPTION_OF_REASON[error.reason](message, error.metadata) from None


class EmbeddedTransport(_InThisProcess):
    """Answers from the prepared datasets below a folder, `embedded:DIR`. Each is opened when it is first requested.

    A dataset is compared with its checksums once for this process and its forks, and again if its files change.

    Raises:
        PackhorseError: the server's packages are not installed, or the folder has no dataset.
    """

    def __init__(self, target: str) -> None:
        try:
            from packhorse.server.base import kernels
            from packhorse.server.base.faults import ServiceError
            from packhorse.server.datasets.corpora import Corpora
            from packhorse.server.datasets.lazy_catalog import LazyCatalog
            from packhorse.server.datasets.mixtures import Mixtures
            from packhorse.server.methods.backend import Backend
        except ModuleNotFoundError as error:
            raise PackhorseError(
                f"embedded: targets need {error.name}; install packhorse[server] beside the client"
            ) from None
        if target == PREFIX:
            raise PackhorseError("embedded: names no folder; give embedded:DIR, e.g. embedded:datasets")
        try:
            catalog = LazyCatalog(root=target.removeprefix(PREFIX), checked=_CHECKED_FOLDERS)
            self._backend = Backend(Mixtures(catalog), corpora=Corpora(of_manifests=True))
        except ValueError as error:
            raise PackhorseError(str(error)) from None
        kernels.begin(at_once=False)  # each compiled loop is loaded by the first request that needs it
        super().__init__(target, methods=self._backend, server_error=ServiceError)


class MemoryTransport(_InThisProcess):
    """Answers from datasets that are planned once in this process.

    Raises:
        PackhorseError: the server's packages are not installed.
        ValueError: an option of the plan, or a length, is out of range.
    """

    def __init__(self, datasets: MemoryDatasets) -> None:
        try:
            from packhorse.server.base import kernels
            from packhorse.server.base.faults import ServiceError
            from packhorse.server.datasets.memory_catalog import MemoryCatalog
            from packhorse.server.methods.backend import Backend
        except ModuleNotFoundError as error:
            raise PackhorseError(
                f"MemoryDatasets need {error.name}; install packhorse[server] beside the client"
            ) from None
        catalog = _CATALOGS.get(datasets.key, lambda: MemoryCatalog(datasets.lengths, datasets.options))
        kernels.begin(at_once=False)  # each compiled loop is loaded by the first request that needs it
        target = "memory:" + ",".join(datasets.lengths)  # the names of the datasets
        super().__init__(target, methods=Backend(catalog), server_error=ServiceError)


class EmbeddedPlanner(_InThisProcess):
    """Packs lengths in this process, without a dataset; a PackhorseError if the server's packages are not installed."""

    def __init__(self) -> None:
        try:
            import packhorse.server.methods.on_demand.pack as pack
            from packhorse.server.base.faults import ServiceError
        except ModuleNotFoundError as error:
            raise PackhorseError(
                f"packing in this process needs {error.name}: pass client=connect(…), or install packhorse[server] "
                "beside the client"
            ) from None
        super().__init__(PREFIX, methods=pack, server_error=ServiceError)
