"""Where ids and keys are in an epoch (LocateSequences), looked up in time slices.

Owns what one request may cost. Leaves the search itself to `packhorse.epoch`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import Keys
from packhorse.epoch import Assignment, Locations, Source, StreamLocations
from packhorse.formats.keys import check_key, shown_key
from packhorse.server.base.faults import invalid_field, too_large
from packhorse.server.base.time_slices import Pace, TimeSlices
from packhorse.server.datasets.protocols import Dataset, Datasets
from packhorse.server.methods import asked_dataset, requests, sizes
from packhorse.server.methods.dataset_messages import components_of
from packhorse.server.methods.epochs import Epochs
from packhorse.topology import Skips, StreamMode
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import LocationsChecksum

MAX_LOCATE_IDS = 10_000
"""Ids in one LocateSequences."""

MAX_LOCATE_BISECTIONS = 1 << 27
"""Most bisections in one LocateSequences: each id takes one for every distinct room. About 40 seconds of one core."""

_BISECTIONS_AT_ONCE = 1 << 16
"""Bisections in one call of the search; they take about 20 ms."""

MAX_LOCATE_ARRANGED = 1 << 28
"""Most bins that one LocateSequences arranges for a balance: each id may be in another optimizer step."""

_ARRANGED_AT_ONCE = 1 << 17
"""Bins that are arranged for one call of the search; they take about 20 ms."""

MAX_LOCATIONS = 500_000
"""Most locations in one answer: an id has one for each piece."""

_BYTES_PER_LOCATION = 320
"""Bytes of memory of one SequenceLocation, as a message and as bytes that are sent."""

_LocationsOf = Callable[[NDArray[np.int64]], list[pb.SequenceLocation]]
"""From ids, int64 [n], to the locations of each, in their order."""


def locate_in_slices(
    catalog: Datasets, epochs: Epochs, request: pb.LocateSequencesRequest
) -> TimeSlices[pb.LocateSequencesResponse]:
    """Locates each id and key of a request; raises a ServiceError if a field is wrong, or the request too large."""
    dataset = asked_dataset.get_dataset(catalog, request.dataset, request.dataset_digest, request.expected_digest)
    takedown = catalog.takedown(dataset)
    skips = asked_dataset.skips_of(request.skip).plus(takedown.skips_of(request.epoch, request.seed))
    asked_dataset.check_digest(dataset, skips, request.expected_digest, epoch=request.epoch, takedown=takedown)
    source = epochs.source(dataset, request.seed, request.epoch, skips)
    num_rooms = dataset.num_rooms
    assignment = _asked_assignment(request, epochs, dataset, source, skips)
    num_arranged = 1 if assignment is None else max(1, assignment.bins_to_locate())
    _check_num_ids(
        request, min(MAX_LOCATE_IDS, MAX_LOCATE_BISECTIONS // num_rooms, MAX_LOCATE_ARRANGED // num_arranged)
    )
    tables = dataset.key_tables
    _check_keys(request, tables)
    response = pb.LocateSequencesResponse(digest=asked_dataset.digest_of(dataset, skips, takedown))
    checksum = LocationsChecksum(request, response.digest)
    names = [component.name for component in components_of(dataset)]
    at_once = max(1, min(_BISECTIONS_AT_ONCE // num_rooms, _ARRANGED_AT_ONCE // num_arranged))
    pace = Pace()
    key_bytes = 0

    def answer_bytes() -> int:
        return _BYTES_PER_LOCATION * len(response.locations) + 2 * key_bytes  # in messages, and as bytes that are sent

    def locations_of(ids: NDArray[np.int64]) -> list[pb.SequenceLocation]:
        """Returns the locations of ids, in all components of a mixture."""
        return _locations_of_ids(source, assignment, request.topology.workers_per_rank, ids, names)

    for locations in _batches(request, tables, locations_of, at_once):
        for location in locations:
            response.locations.append(location)
            checksum.add(location)
            key_bytes += len(location.key)
        if len(response.locations) > MAX_LOCATIONS or key_bytes > sizes.MAX_MESSAGE_BYTES // 2:
            raise too_large(
                "ids",
                MAX_LOCATIONS,
                f"there are more than {MAX_LOCATIONS} answers, or their keys are too long; ask for fewer ids",
            )
        if pace.is_over():
            yield answer_bytes()
            pace.restart()
    catalog.confirm(dataset, range(len(names)))
    response.checksum = checksum.value
    yield answer_bytes()
    return response


def _asked_assignment(
    request: pb.LocateSequencesRequest, epochs: Epochs, dataset: Dataset, source: Source, skips: Skips
) -> Assignment | None:
    """Returns the assignment of the request's topology; None if it has none, and asks for positions only."""
    if not request.HasField("topology"):
        return None
    topology = requests.topology(request.topology, source, request.epoch, dataset.manifest.num_sequences)
    if topology.mode is StreamMode.INDEPENDENT:
        raise invalid_field(
            "topology.mode",
            "topology.mode must be PARTITION: independent streams go through epochs of their own",
        )
    return epochs.assignment(dataset, request.seed, request.epoch, skips, topology)


def _check_num_ids(request: pb.LocateSequencesRequest, most_ids: int) -> None:
    """Refuses a request for more than `most_ids` ids and keys."""
    num_ids = len(request.ids) + len(request.keys)
    if num_ids > most_ids:
        raise too_large(
            "keys" if request.keys else "ids",
            most_ids,
            f"{num_ids} ids and keys are asked for; ask this dataset for at most {most_ids}",
        )


def _check_keys(request: pb.LocateSequencesRequest, tables: Mapping[str, Keys | None]) -> None:
    """Raises a ServiceError if a key is malformed, or the dataset has no keys."""
    if request.keys and not any(tables.values()):
        raise invalid_field(
            "keys",
            f"{shown_key(request.keys[0])[:80]} is not an id, and {request.dataset} has no keys: ask for ids, or "
            "prepare it with an id_column of text",
        )
    for key in request.keys:
        try:
            check_key(key)
        except ValueError as error:
            raise invalid_field("keys", str(error)) from None


def _batches(
    request: pb.LocateSequencesRequest,
    tables: Mapping[str, Keys | None],
    locations_of: _LocationsOf,
    at_once: int,
) -> Iterator[list[pb.SequenceLocation]]:
    """Yields the locations of a request's ids, then of its keys, in batches of `at_once` ids or keys.

    Args:
        request: the request, with ids and keys.
        tables: component → its keys.
        locations_of: a function that returns the locations of ids, without keys.
        at_once: the most ids or keys of a batch.
    """
    ids = np.array(request.ids, dtype=np.int64)
    for first in range(0, len(ids), at_once):
        locations = locations_of(ids[first : first + at_once])
        if request.with_keys:
            _add_keys(locations, tables)
        yield locations
    for first in range(0, len(request.keys), at_once):
        yield _locations_of_keys(request.keys[first : first + at_once], tables, locations_of)


def _locations_of_keys(
    keys: Sequence[str],
    tables: Mapping[str, Keys | None],
    locations_of: _LocationsOf,
) -> list[pb.SequenceLocation]:
    """Returns the locations of keys, in their order; an unknown key has one location, with id -1."""
    answers: list[list[pb.SequenceLocation]] = [[] for _ in keys]
    for component, table in tables.items():  # a key may name a sequence in several components
        if table is None:
            continue
        ids = table.ids_of(keys)
        by_id: dict[int, list[pb.SequenceLocation]] = {}  # id → its locations in this component
        for location in locations_of(np.unique(ids[ids >= 0])):
            if location.component in ("", component):
                by_id.setdefault(location.id, []).append(location)
        for key, id_of_key, answer in zip(keys, ids.tolist(), answers, strict=True):
            for location in by_id.get(id_of_key, ()):
                named = pb.SequenceLocation(key=key, component=component)
                named.MergeFrom(location)
                answer.append(named)
    return [
        location
        for key, answer in zip(keys, answers, strict=True)
        for location in answer or [pb.SequenceLocation(id=-1, key=key)]
    ]


def _add_keys(locations: Sequence[pb.SequenceLocation], tables: Mapping[str, Keys | None]) -> None:
    """Adds to each location the key of its id, if its component has keys."""
    for component, table in tables.items():
        if table is None:
            continue
        of_component = [location for location in locations if location.component == component]
        ids = np.array([location.id for location in of_component], np.int64)
        for location, key in zip(of_component, table.of(ids), strict=True):
            location.key = key


def _locations_of_ids(
    source: Source,
    assignment: Assignment | None,
    workers_per_rank: int,
    ids: NDArray[np.int64],
    components: Sequence[str],
) -> list[pb.SequenceLocation]:
    """Returns the locations of each id; a sequence that was split has one for each piece.

    In a mixture, an id has a location for each time that the epoch uses it. If a component has the id but the epoch
    does not use it, its location has no position.

    Args:
        source: the epoch.
        assignment: the assignment by which ranks get the bins; None if only positions are asked for.
        workers_per_rank: dataloader workers of a rank, with `assignment`.
        ids: int64 [n].
        components: names of a mixture's components; empty for a dataset.
    """
    found = source.locate(ids)
    locations = _locations_in_epoch(found, components)
    if assignment is not None:
        streamed = assignment.locate(found.positions, found.index_in_bin)
        _add_stream_locations(locations, streamed, workers_per_rank)
    return locations


def _locations_in_epoch(found: Locations, components: Sequence[str]) -> list[pb.SequenceLocation]:
    """Returns a message for each location, without the rank that gets the bin; an unknown id has length -1."""
    component_ids = np.full(len(found.ids), -1) if found.component_ids is None else found.component_ids
    return [
        pb.SequenceLocation(
            id=sequence_id,
            found=True,
            length=length,
            first_token=first_token,
            position=position,
            index_in_bin=index_in_bin,
            component=components[component_id] if component_id >= 0 else "",
        )
        if length >= 0
        else pb.SequenceLocation(id=sequence_id)
        for sequence_id, length, first_token, position, index_in_bin, component_id in zip(
            found.ids.tolist(),
            found.lengths.tolist(),
            found.first_tokens.tolist(),
            found.positions.tolist(),
            found.index_in_bin.tolist(),
            component_ids.tolist(),
            strict=True,
        )
    ]


def _add_stream_locations(
    locations: Sequence[pb.SequenceLocation], streamed: StreamLocations, workers_per_rank: int
) -> None:
    """Adds to each location the rank and step that get its bin, if any do."""
    columns = (streamed.steps.tolist(), streamed.ranks.tolist(), streamed.slots.tolist())
    for location, step, rank, slot in zip(locations, *columns, strict=True):
        if step >= 0:
            worker = step % workers_per_rank
            location.stream_location.CopyFrom(pb.StreamLocation(step=step, rank=rank, worker=worker, slot=slot))
