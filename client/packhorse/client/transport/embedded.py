"""Targets in this process: the server's backend over a folder, or over datasets planned from lengths in memory.

Owns `MemoryDatasets`, the transports of this process, and `SharedSet`, a small set that forked processes share. It is
the only file of the client that imports the server's packages, and does so only if an `embedded:` target or
`MemoryDatasets` is used, or if rollouts are packed without a client. Leaves servers to `transport.grpc_channels`.
"""

import hashlib
import math
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.client.errors import EXCEPTION_OF_REASON, NotImplementedByServerError, PackhorseError, named_field
from packhorse.client.transport.methods import Method, no_deadline
from packhorse.client.transport.requests import shortened
from packhorse.storage import BoundedCache
from packhorse.topology import checked_integer

if TYPE_CHECKING:
    from packhorse.server.base.faults import ServiceError
    from packhorse.server.datasets.memory_catalog import MemoryCatalog


class MemoryDatasets:
    """Datasets from lengths in memory, to test a trainer: a target of `connect`, `PackedDataset` and others.

    They give the same plans, epochs and bytes as a folder that `packhorse prepare` writes from the same lengths, with
    the same options. They can be pickled and forked; each spawned dataloader worker plans them again. Needs
    packhorse[server].

    Example:
        >>> from packhorse.client import connect
        >>> datasets = MemoryDatasets({"corpus": [5, 3, 3, 5]}, max_seq_len=8)
        >>> with connect(datasets) as client:
        ...     client.get_bins("corpus", seed=1, positions=[0]).ids
        array([3, 2])
        >>> from packhorse.client import PackedDataset
        >>> documents = [[1, 2, 3], [4, 5], [6, 7, 8]]
        >>> datasets = MemoryDatasets({"documents": documents}, max_seq_len=5)
        >>> for batch in PackedDataset(datasets, "documents", documents, batch_size=1, seed=2):
        ...     print(batch["input_ids"].tolist())
        [[1, 2, 3, 4, 5]]
        [[6, 7, 8, 0, 0]]

    Args:
        datasets: name → int [S], lengths in tokens, or the tokens of S sequences. A sequence's id is its index.
        max_seq_len: a bin's capacity in tokens.
        algorithm: as in `prepare`; the default best-fit is fast and needs no other package.
        over_length: what happens to a sequence that does not fit a bin, as in `prepare`.
        keep: which end of a truncated sequence stays.
        max_sequences_per_bin: the most sequences in a bin; None for no limit.
        align: a sequence's room is a multiple of this many tokens.
        extra_tokens: tokens that each sequence takes besides its own (BOS, EOS); -1 leaves out the last token.
        group_size: the number of consecutive sequences that share a bin; None for no groups.

    Raises:
        ValueError: a name or a length is invalid; `connect` checks the options.
    """

    def __init__(
        self,
        datasets: Mapping[str, ArrayLike | Sequence[ArrayLike]],
        *,
        max_seq_len: int,
        algorithm: str = "best-fit",
        over_length: Literal["error", "drop", "truncate", "split"] = "error",
        keep: Literal["head", "tail"] = "head",
        max_sequences_per_bin: int | None = None,
        align: int = 1,
        extra_tokens: int = 0,
        group_size: int | None = None,
    ) -> None:
        if not isinstance(datasets, Mapping) or not datasets:
            raise ValueError(f"datasets must be a dict from name to lengths or tokens, got {shortened(datasets)}")
        self.lengths: dict[str, NDArray[np.int32]] = {
            _checked_name(name): _lengths_of(name, given) for name, given in datasets.items()
        }
        self.options: dict[str, Any] = {
            "max_seq_len": checked_integer("max_seq_len", max_seq_len, 1, 2**31 - 1),
            "algorithm": algorithm,
            "over_length": over_length,
            "keep": keep,
            "max_sequences_per_bin": max_sequences_per_bin,
            "align": align,
            "extra_tokens": extra_tokens,
            "group_size": group_size,
        }

    def __repr__(self) -> str:
        counts = ", ".join(f"{name}: {len(lengths):,} sequences" for name, lengths in self.lengths.items())
        return f"MemoryDatasets({counts}; max_seq_len={self.options['max_seq_len']})"

    @property
    def key(self) -> tuple[object, ...]:
        """A tuple of all lengths and options: equal if the datasets are equal."""
        lengths = ((name, lengths.tobytes()) for name, lengths in self.lengths.items())
        return (*lengths, *self.options.items())


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name or name.startswith(".") or not name.isprintable() or "/" in name:
        raise ValueError(f"datasets has the name {shortened(name)}; a name is a word without slashes, such as 'corpus'")
    return name


def _lengths_of(name: str, given: Any) -> NDArray[np.int32]:
    """Returns a dataset's lengths, int32 [S], of a list of lengths or of sequences of tokens."""
    wanted = "a list of lengths in tokens, each at least 1, or of the sequences' tokens"
    if isinstance(given, str | bytes | Mapping) or not hasattr(given, "__len__"):
        raise ValueError(f"datasets[{name!r}] must be {wanted}, got {shortened(given)}")
    items = list(given)
    try:
        sizes = [len(item) if hasattr(item, "__len__") else item for item in items]
        lengths = [checked_integer("a length", size, 1, 2**31 - 1) for size in sizes]
    except (TypeError, ValueError) as error:
        raise ValueError(f"datasets[{name!r}] must be {wanted}: {error}") from None
    return np.array(lengths, dtype=np.int32)


_ENTRY_BYTES = 16
"""Bytes of an entry of a `SharedSet`: a text's hash."""


class SharedSet:
    """A set of texts in one page of memory that a process shares with its forks, without a lock.

    The page has 256 slots of 16 bytes, each with the hash of a text. A text that comes to another's slot replaces it,
    so the set may forget texts; use it only if that costs nothing but time.

    Example:
        >>> known = SharedSet()
        >>> known.add("a")
        >>> "a" in known, "b" in known
        (True, False)
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def add(self, text: str) -> None:
        """Adds a text, for this process and all its forks."""
        entry, slot = _entry_of(text)
        self._memory[slot] = entry

    def __contains__(self, text: str) -> bool:
        """Whether any of these processes has added the text. An entry that is only half written does not count."""
        entry, slot = _entry_of(text)
        return self._memory[slot] == entry


def _entry_of(text: str) -> tuple[bytes, slice]:
    """Returns a text's hash, and the bytes of the page where it belongs."""
    entry = hashlib.blake2b(text.encode(), digest_size=_ENTRY_BYTES).digest()
    first = int.from_bytes(entry[:8], "little") % (mmap.PAGESIZE // _ENTRY_BYTES) * _ENTRY_BYTES
    return entry, slice(first, first + _ENTRY_BYTES)


_Request = TypeVar("_Request")
_Response = TypeVar("_Response")

PREFIX = "embedded:"

_CHECKED = SharedSet()
"""Folders whose files matched their checksums, with the files' stamps, so that workers need not check every epoch."""

_PLANNED: "BoundedCache[object, MemoryCatalog]" = BoundedCache(8)
"""The last plans of `MemoryDatasets`: a client is made for each epoch, and forked workers use their parent's plans."""


class _InThisProcess:
    """A transport that calls methods of an object in this process, without a time limit.

    Args:
        target: the target that `connect` was given.
        methods: an object with some of the service's methods, under the names of `Method`: the server's Backend, or a
            module.
        fault: the exception that the methods raise; it becomes the client's exception of the same reason.
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
        self, method: Method[_Request, _Response], request: _Request, seconds_left: Callable[[], float] = no_deadline
    ) -> Iterator[_Response]:
        """Yields the messages that answer a request, or an iterator of requests."""
        with self._client_errors():
            yield from self._of(method)(request)

    def close(self) -> None:
        """Does nothing: there are no connections."""

    def _of(self, method: Method[Any, Any]) -> Any:
        """Returns the object's function for a method; a NotImplementedByServerError if it has none."""
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
        except self._fault as error:
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
            datasets = Mixtures(LazyCatalog(target.removeprefix(PREFIX), _CHECKED))
            self._backend = Backend(datasets, corpora=Corpora(of_manifests=True))
        except ValueError as error:
            raise PackhorseError(str(error)) from None
        kernels.begin(at_once=False)
        super().__init__(target, self._backend, ServiceError)


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
        catalog = _PLANNED.get(datasets.key, lambda: MemoryCatalog(datasets.lengths, datasets.options))
        kernels.begin(at_once=False)
        super().__init__("memory:" + ",".join(datasets.lengths), Backend(catalog), ServiceError)


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
        super().__init__(PREFIX, pack, ServiceError)
