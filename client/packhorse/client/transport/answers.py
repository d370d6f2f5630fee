"""The service's answers as Python values."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packhorse.client.errors import DamagedAnswerError, VersionMismatchError
from packhorse.client.transport.requests import too_old
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import WIRE_VERSION, LocationsChecksum


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
