"""`SequenceLocation`: where a sequence is in an epoch, read from the service's answer to LocateSequences.

Owns checking that answer. Leaves the request to `client/api`, and answers of packing to `client/_packing_answer`.
"""

from dataclasses import dataclass

from packhorse.client.error_texts import too_old
from packhorse.client.errors import DamagedAnswerError
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import LocationsChecksum


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceLocation:
    """Where one sequence, or one piece of a split sequence, is in an epoch. A number that does not apply is None.

    Example:
        >>> from packhorse.client import connect
        >>> with connect("embedded:datasets") as client:
        ...     [location] = client.locate("corpus", seed=1, ids=[3])
        >>> location.position, location.index_in_bin, location.length
        (0, 0, 5)
    """

    id: int
    """The requested id, or the id of the requested key; -1 if no sequence has the key."""
    found: bool
    """Whether the plan has the sequence."""
    first_token: int | None = None
    """Number of the piece's first token in its sequence; 0 for a whole sequence."""
    length: int | None = None
    """Length of the sequence or piece, in tokens."""
    position: int | None = None
    """Position of the bin that holds it; -1 if the bin is skipped."""
    index_in_bin: int | None = None
    """Index among the sequences of that bin, in the order of `get_bins`."""
    step: int | None = None
    """Step, counted from start_position; None if the bin is skipped, dropped or before start_position."""
    rank: int | None = None
    """Data-parallel rank."""
    worker: int | None = None
    """Dataloader worker within the rank."""
    slot: int | None = None
    """Index of the bin among the rank's batch_size bins of that step."""
    component: str = ""
    """Component of a mixture; empty without a mixture."""
    key: str = ""
    """The requested key, or the key of the id if the dataset has keys."""


def read_locations(response: pb.LocateSequencesResponse, request: pb.LocateSequencesRequest) -> list[SequenceLocation]:
    """Returns the locations in an answer.

    Raises:
        DamagedAnswerError: they do not match their checksum.
        VersionMismatchError: the server does not know keys.
    """
    # A server that does not know the field `keys` ignores it, and so answers for none of them.
    if not set(request.keys) <= {location.key for location in response.locations}:
        raise too_old("keys")
    checksum = LocationsChecksum(request, response.digest)
    for location in response.locations:
        checksum.add(location)
    if checksum.value != response.checksum:
        raise DamagedAnswerError("the locations do not match their checksum: bytes changed on the way")
    return [_location(location) for location in response.locations]


def _location(location: pb.SequenceLocation) -> SequenceLocation:
    """Returns a location of the message, with None for fields that it does not give."""
    facts: dict[str, int] = {}  # only those that the message gives
    if location.found:
        facts = {name: getattr(location, name) for name in ("first_token", "length", "position", "index_in_bin")}
    if location.found and location.HasField("stream_location"):
        facts |= {name: getattr(location.stream_location, name) for name in ("step", "rank", "worker", "slot")}
    return SequenceLocation(
        id=location.id, found=location.found, component=location.component, key=location.key, **facts
    )
