"""What the service answers, as Python values.

Owns the checks that an answer is one to its request, and where sequences are; leaves the facts of a dataset to
`packhorse.types`, and asking to `api`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packhorse.client.errors import DamagedAnswerError, VersionMismatchError
from packhorse.types import Component as Component
from packhorse.types import DatasetInfo as DatasetInfo
from packhorse.types import Redaction as Redaction
from packhorse.types import Stage as Stage
from packhorse.types import StreamHeader as StreamHeader
from packhorse.types import Takedown as Takedown
from packhorse.types import TakenPositions as TakenPositions
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import WIRE_VERSION, LocationsChecksum


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceLocation:
    """Where one sequence is in an epoch; None where there is no answer.

    Example:
        >>> from packhorse.client import connect
        >>> with connect("embedded:datasets") as client:
        ...     [location] = client.locate("corpus", seed=1, ids=[3])
        >>> location.position, location.index_in_bin, location.length
        (0, 0, 5)
    """

    id: int
    """The id asked for, or that of the key; -1 where no sequence has the key."""
    found: bool
    """False when the plan has no such sequence."""
    first_token: int | None = None
    """Its first token in the sequence; 0 unless it is a piece."""
    length: int | None = None
    """Its length in tokens."""
    position: int | None = None
    """Position of its bin; -1 where the bin is skipped."""
    index_in_bin: int | None = None
    """Its index among the sequences of that bin, as `get_bins` returns it."""
    step: int | None = None
    """Step, counted from start_position; None when dropped or before it."""
    rank: int | None = None
    """Data-parallel rank."""
    worker: int | None = None
    """Dataloader worker within the rank."""
    slot: int | None = None
    """Which of the rank's batch_size bins of that step."""
    component: str = ""
    """Of a mixture, the component that it is of; empty otherwise."""
    key: str = ""
    """The key asked for, or that of the id where the dataset has keys."""


def read_locations(response: pb.LocateSequencesResponse, request: pb.LocateSequencesRequest) -> list[SequenceLocation]:
    """Returns the locations of an answer; refuses one whose bytes changed on the way."""
    if not set(request.keys) <= {location.key for location in response.locations}:
        raise VersionMismatchError(
            "this server knows no keys, as it is older than them: upgrade packhorse on the server's side",
            {"client_version": str(WIRE_VERSION), "server_version": str(WIRE_VERSION)},
        )
    checksum = LocationsChecksum(request, response.digest)
    for location in response.locations:
        checksum.add(location)
    if checksum.value != response.checksum:
        raise DamagedAnswerError("the locations do not match their checksum: bytes changed on the way")
    return [_location(location) for location in response.locations]


def _location(location: pb.SequenceLocation) -> SequenceLocation:
    if not location.found:
        return SequenceLocation(id=location.id, found=False, component=location.component, key=location.key)
    streamed = location.stream_location if location.HasField("stream_location") else None
    return SequenceLocation(
        id=location.id,
        found=True,
        first_token=location.first_token,
        length=location.length,
        position=location.position,
        index_in_bin=location.index_in_bin,
        step=streamed.step if streamed else None,
        rank=streamed.rank if streamed else None,
        worker=streamed.worker if streamed else None,
        slot=streamed.slot if streamed else None,
        component=location.component,
        key=location.key,
    )


def read_packing(response: pb.PackSequencesResponse, request: pb.PackSequencesRequest) -> list[NDArray[np.int64]]:
    """Returns each bin's indices into the request's lengths; refuses an answer that is no packing of them."""
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
        raise VersionMismatchError(
            "this server packs without groups, as it is older than them: upgrade packhorse on the server's side",
            {"client_version": str(WIRE_VERSION), "server_version": str(WIRE_VERSION)},
        )
    return np.split(indices, ends[:-1]) if len(ends) else []


def _is_torn(groups: NDArray[np.int64], indices: NDArray[np.int64], sizes: NDArray[np.int64]) -> bool:
    """Whether a group's sequences lie in several bins, apart, or in another order; never where no groups were sent."""
    if not len(groups):
        return False
    bins, numbers = np.repeat(np.arange(len(sizes)), sizes), groups[indices]
    goes_on = (np.diff(numbers) == 0) & (np.diff(bins) == 0)
    return bool((np.diff(indices)[goes_on] < 0).any()) or len(indices) - int(goes_on.sum()) != len(np.unique(groups))


def _is_mixed(kinds: NDArray[np.int64], indices: NDArray[np.int64], sizes: NDArray[np.int64]) -> bool:
    """Whether neighbours in a bin differ in kind; never where no kinds were sent."""
    if not len(kinds):
        return False
    bins = np.repeat(np.arange(len(sizes)), sizes)
    return bool(((np.diff(kinds[indices]) != 0) & (np.diff(bins) == 0)).any())
