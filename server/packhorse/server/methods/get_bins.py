"""The bins at any positions of an epoch (GetBins), read in time slices.

Owns what one request may cost. Leaves a stream's blocks to `open_stream`, and the bytes of bins to `messages`.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from packhorse.epoch import Bins, Source, joined
from packhorse.server.base.time_slices import Pace, TimeSlices
from packhorse.server.datasets.corpora import Corpora
from packhorse.server.datasets.protocols import Dataset, Datasets
from packhorse.server.methods import asked_dataset, requests, sizes, versions
from packhorse.server.methods.dataset_messages import ID_TYPES
from packhorse.server.methods.epochs import Epochs
from packhorse.server.methods.messages import as_declared, components_in, encode, encode_tokens
from packhorse.server.methods.open_stream import BLOCK_BYTES
from packhorse.topology import Skips
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import get_bins_context

_COPIES = 3
"""Copies of an answer in memory while it is made: in arrays, in the message and in the bytes that are sent."""


def get_bins_in_slices(
    catalog: Datasets,
    epochs: Epochs,
    corpora: Corpora,
    note: Callable[[Dataset, Skips, int, int], None],
    request: pb.GetBinsRequest,
) -> TimeSlices[pb.GetBinsResponse]:
    """Returns the bins at a request's positions; raises a ServiceError if a field is wrong, or the request too large.

    `note` is called with dataset, skips and epoch, and with the end of the positions, exclusive.
    """
    dataset = asked_dataset.get_dataset(catalog, request.dataset, request.dataset_digest, request.expected_digest)
    takedown = catalog.takedown(dataset)
    versions.check_reads(dataset, takedown, request.wire_version)
    skips = asked_dataset.skips_of(request.skip)
    if not request.is_whole:
        skips = skips.plus(takedown.skips_of(request.epoch, request.seed))
    end = max(request.positions, default=-1) + 1
    asked_dataset.check_digest(
        dataset, skips, request.expected_digest, epoch=request.epoch, before=end, takedown=takedown
    )
    source = epochs.source(dataset, request.seed, request.epoch, skips)
    corpus = corpora.of(dataset) if request.with_tokens else None
    positions = _checked_positions(request, dataset, source)
    drawn, num_bytes = yield from _draw_in_slices(source, positions, dataset, with_tokens=request.with_tokens)
    bins = as_declared(drawn, dataset.manifest)
    catalog.confirm(dataset, components_in(bins))
    note(dataset, skips, request.epoch, end)
    digest = asked_dataset.digest_of(dataset, skips, takedown)
    response = pb.GetBinsResponse(digest=digest, id_type=ID_TYPES[dataset.manifest.id_dtype])
    context = get_bins_context(request, response.digest, response.id_type)
    num_bins = epochs.whole(dataset, request.seed, request.epoch).num_bins
    redacted = takedown.redacted(bins, epoch=request.epoch, seed=request.seed, num_bins=num_bins, skips=skips)
    encode(bins, response.bins, context, positions=positions, redacted=redacted)
    if corpus is not None:
        with corpora.reading(dataset):
            tokens = corpus.read(bins, redacted)
        has_prefixes = dataset.manifest.shares_prefixes
        encode_tokens(tokens, response.tokens, response.bins.checksum, has_prefixes=has_prefixes)
    yield (_COPIES - 1) * num_bytes  # the arrays go when this function ends
    return response


def _checked_positions(request: pb.GetBinsRequest, dataset: Dataset, source: Source) -> NDArray[np.int64]:
    """Returns the positions of a request; raises a ServiceError if they are too many, or not in the epoch.

    Each bin has a sequence at least, so too many positions are refused before any bin is drawn.
    """
    least_bytes = _bytes_beside_sequences(dataset, request.with_tokens) + sizes.bytes_per_sequence(dataset)
    most_positions = sizes.MAX_MESSAGE_BYTES // least_bytes
    sizes.check_answer_size("positions", least_bytes * len(request.positions), most_positions, len(request.positions))
    positions = np.array(request.positions, dtype=np.int64)
    outside = positions[(positions < 0) | (positions >= source.num_bins)]
    if len(outside):
        requests.integer("positions", int(outside[0]), 0, source.num_bins - 1)
    return positions


def _draw_in_slices(
    source: Source, positions: NDArray[np.int64], dataset: Dataset, *, with_tokens: bool
) -> TimeSlices[tuple[Bins, int]]:
    """Returns bins and the bytes of their answer, drawn part by part until they are too many for one message.

    Raises:
        ServiceError: they are too many.
    """
    bytes_per_bin = _bytes_beside_sequences(dataset, with_tokens)
    bytes_per_sequence = sizes.bytes_per_sequence(dataset)
    most_bytes_per_bin = sizes.most_bytes_per_bin(dataset, with_tokens=with_tokens)
    most_held_bytes = _COPIES * min(most_bytes_per_bin * len(positions), sizes.MAX_MESSAGE_BYTES)
    yield most_held_bytes
    parts = []
    num_bytes = 0
    at_once = max(1, BLOCK_BYTES // most_bytes_per_bin)
    pace = Pace()
    for first in range(0, len(positions), at_once):
        part = source.bins(positions[first : first + at_once])
        bins_so_far = np.arange(1, len(part.bin_ends) + 1)
        # Bytes of the answer up to each bin of this part, inclusive: int64 [bins].
        byte_ends = num_bytes + bytes_per_bin * bins_so_far + bytes_per_sequence * part.bin_ends
        num_fitting = first + int(np.searchsorted(byte_ends, sizes.MAX_MESSAGE_BYTES, side="right"))
        num_bytes = int(byte_ends[-1])
        sizes.check_answer_size("positions", num_bytes, num_fitting, len(positions))
        parts.append(part)
        if pace.is_over():
            yield most_held_bytes
            pace.restart()
    return joined(parts or [source.bins(positions)]), num_bytes  # without positions there is no part


def _bytes_beside_sequences(dataset: Dataset, with_tokens: bool) -> int:
    return sizes.BYTES_PER_BIN + sizes.token_bytes(dataset, with_tokens=with_tokens)
