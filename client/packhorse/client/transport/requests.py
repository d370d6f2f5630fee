"""Requests to the service and its answers: methods, messages from Python arguments, and Python values from messages.

Owns the interface of a transport; `grpc_channels` and `embedded` are its two forms, and give the same messages. A
field that cannot hold a value is refused here by its name. Leaves ranges to the service, which refuses with the same
exception, and bins to `streams/blocks`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
from google.protobuf.message_factory import GetMessageClass
from numpy.typing import ArrayLike, NDArray

from packhorse.client.errors import DamagedAnswerError, InvalidRequestError, VersionMismatchError
from packhorse.parameters import message_of, parameter
from packhorse.topology import Balance, BatchSchedule, Skips, Topology, as_choice
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import WIRE_VERSION, LocationsChecksum

Resources: TypeAlias = "Mapping[str, tuple[ArrayLike, int]]"
"""Name of what sequences take of a bin beside tokens → (how much each takes, int [S]; the most that a bin holds)."""

NO_RESOURCES: Resources = MappingProxyType({})

_SERVICE = pb.DESCRIPTOR.services_by_name["PackingService"]

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


@dataclass(frozen=True, slots=True)
class Method(Generic[_Request, _Response]):
    """One method of the service, with the types of what it takes and of each message that it returns."""

    name: str
    """In Python, as the server's backend has it: get_bins."""

    @property
    def rpc(self) -> str:
        """In the protocol: GetBins."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def path(self) -> str:
        """As gRPC writes it: /packhorse.v1.PackingService/GetBins."""
        return f"/{_SERVICE.full_name}/{self.rpc}"

    @property
    def parse(self) -> Callable[[bytes], _Response]:
        """Decodes a message that the method returns; raises DecodeError."""
        kind: Any = GetMessageClass(_SERVICE.methods_by_name[self.rpc].output_type)
        parse: Callable[[bytes], _Response] = kind.FromString
        return parse


LIST_DATASETS: Method[pb.ListDatasetsRequest, pb.ListDatasetsResponse] = Method("list_datasets")
GET_DATASET: Method[pb.GetDatasetRequest, pb.GetDatasetResponse] = Method("get_dataset")
GET_BINS: Method[pb.GetBinsRequest, pb.GetBinsResponse] = Method("get_bins")
LOCATE_SEQUENCES: Method[pb.LocateSequencesRequest, pb.LocateSequencesResponse] = Method("locate_sequences")
PACK_SEQUENCES: Method[pb.PackSequencesRequest, pb.PackSequencesResponse] = Method("pack_sequences")
APPEND_STAGE: Method[pb.AppendStageRequest, pb.AppendStageResponse] = Method("append_stage")
STREAM_BINS: Method[pb.StreamBinsRequest, pb.StreamBinsResponse] = Method("stream_bins")
PACK_STREAM: Method[Iterator[pb.PackStreamRequest], pb.PackStreamResponse] = Method("pack_stream")


def without_end() -> float:
    """Returns the time until a deadline that there is not."""
    return math.inf


class Transport(Protocol):
    """Carries requests to a service. Every method raises the exceptions of `packhorse.client.errors`.

    Example:
        >>> from packhorse.client.transport.embedded import EmbeddedTransport
        >>> transport = EmbeddedTransport("embedded:datasets")
        >>> transport.answer(GET_DATASET, pb.GetDatasetRequest(name="corpus")).dataset.num_bins
        2
    """

    target: str
    """What `connect` was given."""

    @property
    def has_answered(self) -> bool:
        """Whether the service has ever answered; clients wait longer for one that has."""

    def answer(
        self, method: Method[_Request, _Response], request: _Request, timeout_seconds: float = math.inf
    ) -> _Response:
        """Returns the one answer to a request, within the time."""

    def stream(
        self, method: Method[_Request, _Response], request: _Request, seconds_left: Callable[[], float] = without_end
    ) -> Iterator[_Response]:
        """Yields the messages that answer a request, or an iterator of requests; closing the iterator ends the call.

        `seconds_left` is asked before each message for the time until the deadline. A later message that takes half of
        it fails, so that there is time for another attempt. Nothing is sent before the first message is asked for.
        """

    def close(self) -> None:
        """Closes connections; later calls connect again."""


_Message = TypeVar("_Message")


def message(kind: Callable[..., _Message], *, within: str = "", **fields: Any) -> _Message:
    """Returns a message of the given fields; an InvalidRequestError names one that does not fit, in `within`."""
    try:
        return kind(**fields)
    except (ValueError, TypeError, OverflowError):  # protobuf does not tell which field
        for name, value in fields.items():
            try:
                kind(**{name: value})
            except (ValueError, TypeError, OverflowError) as error:
                raise invalid(within + name, f"{bounded(error)} (got {shortened(value)})") from None
        raise


def topology_message(topology: Topology) -> pb.Topology:
    """Returns a topology's message."""
    if not isinstance(topology, Topology):
        raise invalid("topology", f"must be a Topology, e.g. Topology(world_size=8), got {shortened(topology)}")
    phases = [] if topology.batch_schedule is None else _phases(topology.batch_schedule)
    return message(
        pb.Topology,
        within="topology.",
        world_size=topology.world_size,
        workers_per_rank=topology.workers_per_rank,
        batch_size=0 if phases else topology.batch_size,
        batch_schedule=phases,
        start_position=topology.start_position,
        remainder=f"REMAINDER_POLICY_{topology.remainder.name}",
        mode=f"STREAM_MODE_{topology.mode.name}",
        balance=f"BALANCE_{topology.balance.name}",
        accumulation=topology.accumulation,
        cost_linear=topology.cost_linear,
    )


def _phases(schedule: BatchSchedule) -> list[pb.BatchPhase]:
    return [
        message(
            pb.BatchPhase,
            within="topology.batch_schedule.",
            global_batch_size=size,
            **{"tokens" if in_tokens else "bins": begin},
        )
        for begin, in_tokens, size in schedule.phases
    ]


def skip_message(skips: Skips) -> list[pb.PositionRange]:
    """Returns the messages of ranges of positions."""
    if not isinstance(skips, Skips):
        raise invalid("skip", f"must be Skips, e.g. Skips.parse(['1200:1300']), got {shortened(skips)}")
    return [message(pb.PositionRange, within="skip.", first=first, end=end) for first, end in skips.ranges]


def checked_balance(field: str, balance: Balance | str) -> Balance:
    """Returns a balance; an InvalidRequestError names the field where it is none."""
    try:
        return as_choice(field, Balance, balance)
    except ValueError as error:
        raise InvalidRequestError(message_of(error), {"field": field}) from None


def balance_message(field: str, balance: Balance | str) -> str:
    """Returns a balance's name in the protocol."""
    return f"BALANCE_{checked_balance(field, balance).name}"


def integers(field: str, values: ArrayLike | Iterable[int]) -> list[int]:
    """Returns a list of Python ints; refuses anything but a flat list of integers."""
    try:
        array = np.asarray(values if isinstance(values, np.ndarray) else list(values))  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:  # no list, or lists of several lengths
        raise invalid(field, f"must be a flat list of 64-bit integers ({bounded(error)})") from None
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise invalid(field, f"must be a flat list of 64-bit integers (got {array.dtype} of shape {array.shape})")
    return [int(value) for value in array.tolist()]


def budget_messages(resources: Resources) -> list[pb.Budget]:
    """Returns budgets as messages; refuses what is no mapping of name to (amounts, cap)."""
    messages = []
    for name, given in resources.items() if isinstance(resources, Mapping) else [("", None)]:
        if not isinstance(given, tuple) or len(given) != 2:
            raise invalid("resources", f"must be a dict of name to (amounts, cap), got {shortened(resources)}")
        if not isinstance(name, str) or name in ("", "tokens"):
            raise invalid(
                "resources", f"{name!r} names no resource; take a text but 'tokens', whose cap is max_seq_len"
            )
        amounts, cap = integers(f"the amounts of {name!r} in resources", given[0]), given[1]
        if not isinstance(cap, int | np.integer):
            raise invalid("resources", f"the cap of {name!r} must be an integer of at least 1, got {shortened(cap)}")
        if amounts and not 0 <= min(amounts) <= max(amounts) < 2**31:
            wrong = next(i for i, amount in enumerate(amounts) if not 0 <= amount < 2**31)
            raise invalid(
                "resources", f"sequence {wrong} takes {amounts[wrong]} of {name!r}, which is not in [0, 2^31)"
            )
        messages.append(message(pb.Budget, name=name, cap=cap, amounts=amounts))
    return messages


def texts(field: str, values: Iterable[str]) -> list[str]:
    """Returns a list of texts; refuses a single text, which would be taken letter by letter."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise invalid(field, f"must be a list of texts, got {shortened(values)}")
    return list(values)


def invalid(field: str, what: str) -> InvalidRequestError:
    """The exception that names a field."""
    return InvalidRequestError(parameter(field) + f": {what}", {"field": field})


def too_old(what: str) -> VersionMismatchError:
    """The exception for an answer that leaves out what was asked for."""
    return VersionMismatchError(
        f"this server is too old for {what}: upgrade packhorse on the server's side",
        {"client_version": str(WIRE_VERSION), "server_version": str(WIRE_VERSION)},
    )


def shortened(value: object) -> str:
    """Returns a value as an error quotes it: its first 40 characters."""
    return bounded(repr(value), 40)


def bounded(text: object, most: int = 1000) -> str:
    """Returns the first `most` characters of a text, with an ellipsis where it has more."""
    text = str(text)
    return text if len(text) <= most else f"{text[:most]}…"


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceLocation:
    """Where one sequence is in an epoch. A field without an answer is None.

    Example:
        >>> from packhorse.client import connect
        >>> with connect("embedded:datasets") as client:
        ...     [location] = client.locate("corpus", seed=1, ids=[3])
        >>> location.position, location.index_in_bin, location.length
        (0, 0, 5)
    """

    id: int
    """The requested id, or that of the key; -1 if no sequence has the key."""
    found: bool
    """Whether the plan has the sequence."""
    first_token: int | None = None
    """First token of the piece in its sequence; 0 for a whole sequence."""
    length: int | None = None
    """Its length in tokens."""
    position: int | None = None
    """Position of its bin; -1 if the bin is skipped."""
    index_in_bin: int | None = None
    """Its index among the sequences of that bin, as `get_bins` returns it."""
    step: int | None = None
    """Step, counted from start_position; None if the bin is dropped or before it."""
    rank: int | None = None
    """Data-parallel rank."""
    worker: int | None = None
    """Dataloader worker within the rank."""
    slot: int | None = None
    """Which of the rank's batch_size bins of that step."""
    component: str = ""
    """Its component in a mixture; empty without a mixture."""
    key: str = ""
    """The requested key, or that of the id if the dataset has keys."""


def read_locations(response: pb.LocateSequencesResponse, request: pb.LocateSequencesRequest) -> list[SequenceLocation]:
    """Returns the locations of an answer; refuses one that does not match its checksum."""
    if not set(request.keys) <= {location.key for location in response.locations}:
        raise VersionMismatchError(
            "this server is too old for keys: upgrade packhorse on the server's side",
            {"client_version": str(WIRE_VERSION), "server_version": str(WIRE_VERSION)},
        )
    checksum = LocationsChecksum(request, response.digest)
    for location in response.locations:
        checksum.add(location)
    if checksum.value != response.checksum:
        raise DamagedAnswerError("the locations do not match their checksum: bytes changed on the way")
    return [_location(location) for location in response.locations]


def _location(location: pb.SequenceLocation) -> SequenceLocation:
    where: dict[str, int] = {}
    if location.found:
        where = {name: getattr(location, name) for name in ("first_token", "length", "position", "index_in_bin")}
    if location.found and location.HasField("stream_location"):
        where |= {name: getattr(location.stream_location, name) for name in ("step", "rank", "worker", "slot")}
    return SequenceLocation(
        id=location.id, found=location.found, component=location.component, key=location.key, **where
    )


def read_packing(response: pb.PackSequencesResponse, request: pb.PackSequencesRequest) -> list[NDArray[np.int64]]:
    """Returns each bin's indices into the request's lengths; refuses an answer that does not pack them."""
    lengths = np.array(request.lengths, dtype=np.int64)
    if len(response.indices) != 4 * len(lengths) or len(response.bin_ends) % 4:
        raise DamagedAnswerError(
            f"the answer holds {len(response.indices)} bytes of indices for {len(lengths)} lengths"
        )
    indices = np.frombuffer(response.indices, dtype="<u4").astype(np.int64)
    ends = np.frombuffer(response.bin_ends, dtype="<u4").astype(np.int64)
    sizes = np.diff(ends, prepend=0)
    if (
        not np.array_equal(np.sort(indices), np.arange(len(lengths)))
        or (sizes < int(not request.allow_empty)).any()
        or (ends[-1] if len(ends) else 0) != len(lengths)
        or len(ends) % max(request.num_bins_multiple_of, 1)
        or np.diff(np.concatenate(([0], np.cumsum(lengths[indices])))[ends], prepend=0).max(initial=0)
        > request.max_seq_len
        or _is_mixed(np.array(request.separate_by, dtype=np.int64), indices, sizes)
    ):
        raise DamagedAnswerError("the bins are no packing of the lengths that were sent: bytes changed on the way")
    if _is_torn(np.array(request.groups, dtype=np.int64), indices, sizes):
        raise too_old("groups")
    for each in request.budgets:
        up_to = np.concatenate(([0], np.cumsum(np.array(each.amounts, dtype=np.int64)[indices])))
        if np.diff(up_to[ends], prepend=0).max(initial=0) > each.cap:
            raise too_old("resources")
    return np.split(indices, ends[:-1]) if len(ends) else []


def _is_torn(groups: NDArray[np.int64], indices: NDArray[np.int64], sizes: NDArray[np.int64]) -> bool:
    """Whether a group's sequences are in several bins, not next to each other, or in another order."""
    if not len(groups):
        return False
    bins, numbers = np.repeat(np.arange(len(sizes)), sizes), groups[indices]
    continues = (np.diff(numbers) == 0) & (np.diff(bins) == 0)
    return bool((np.diff(indices)[continues] < 0).any()) or len(indices) - int(continues.sum()) != len(
        np.unique(groups)
    )


def _is_mixed(kinds: NDArray[np.int64], indices: NDArray[np.int64], sizes: NDArray[np.int64]) -> bool:
    """Whether neighbours in a bin differ in kind."""
    if not len(kinds):
        return False
    bins = np.repeat(np.arange(len(sizes)), sizes)
    return bool(((np.diff(kinds[indices]) != 0) & (np.diff(bins) == 0)).any())
