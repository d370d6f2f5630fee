"""How large a message may be, and how large an answer will be.

Owns the limit and the estimates. Leaves waiting for memory to `service.memory_budget`.
"""

import math

import numpy as np

from packhorse.server.base.faults import too_large
from packhorse.server.datasets.protocols import Dataset

MAX_MESSAGE_BYTES = 64 << 20
"""Most bytes of a response; clients accept as much."""

_BYTES_PER_LENGTH = 4
"""Bytes of a sequence's length, where a bin's template is defined."""

BYTES_PER_BIN = 16
"""Bytes of a bin in a message, beside its sequences: four numbers of 4 bytes. They are its template's number, the same
number again and the template's size where the template is defined, and the bin's position."""

BYTES_PER_TOKEN = 4.125
"""Bytes of a token at most: 4, and a bit of the loss mask."""

_BYTES_PER_GROUP = 8
"""Bytes of a sequence's group in a message of bins."""


def bytes_per_sequence(dataset: Dataset) -> int:
    """Returns the bytes of a sequence in a message of bins, if its bin's template is defined there."""
    return _BYTES_PER_LENGTH + _bytes_beside_length(dataset)


def average_bytes_per_bin(dataset: Dataset, *, with_tokens: bool = False) -> float:
    """Returns the average bytes of a bin in a message, once most templates have been defined."""
    sequences_per_bin = dataset.manifest.num_sequences / dataset.manifest.num_bins
    if dataset.has_templates:
        bin_bytes = BYTES_PER_BIN / 2  # two of the four numbers define a template
        sequence_bytes = _bytes_beside_length(dataset)
    else:  # every bin and its lengths are sent as if they defined a template
        bin_bytes, sequence_bytes = BYTES_PER_BIN, bytes_per_sequence(dataset)
    return bin_bytes + sequence_bytes * sequences_per_bin + token_bytes(dataset, with_tokens=with_tokens)


def token_bytes(dataset: Dataset, *, with_tokens: bool) -> int:
    """Returns the most bytes of a full bin's tokens in a message; 0 if it has none."""
    return math.ceil(BYTES_PER_TOKEN * dataset.manifest.max_seq_len) if with_tokens else 0


def most_bytes_per_bin(dataset: Dataset, *, with_tokens: bool = False) -> int:
    """Returns the most bytes of a bin in a message, if its template is defined there."""
    sequence_bytes = bytes_per_sequence(dataset) * dataset.max_sequences_per_bin
    return BYTES_PER_BIN + sequence_bytes + token_bytes(dataset, with_tokens=with_tokens)


def check_message_size(field: str, num_bins: int, dataset: Dataset, *, with_tokens: bool = False) -> None:
    """Refuses a number of bins that may not fit into one message."""
    limit = max(MAX_MESSAGE_BYTES // most_bytes_per_bin(dataset, with_tokens=with_tokens), 1)
    if num_bins > limit:
        raise too_large(
            field,
            limit,
            f"{field} asks for {num_bins} bins in one message; of this dataset, with up to "
            f"{dataset.max_sequences_per_bin} sequences in a bin, at most {limit} fit",
        )


def check_answer_size(field: str, num_bytes: int, num_fitting: int, num_bins: int) -> None:
    """Refuses bins that do not fit into one message, and says that the first `num_fitting` do."""
    if num_bytes > MAX_MESSAGE_BYTES:
        raise too_large(
            field,
            num_fitting,
            f"{field} asks for {num_bins} bins, more than the {MAX_MESSAGE_BYTES >> 20} MiB that one message holds; "
            f"the first {num_fitting} fit",
        )


def _bytes_beside_length(dataset: Dataset) -> int:
    """Returns the bytes of a sequence in a message of bins without its length: id, first token and group."""
    manifest = dataset.manifest
    start_bytes = np.dtype(manifest.start_dtype).itemsize if manifest.start_dtype else 0
    group_bytes = _BYTES_PER_GROUP if dataset.has_groups else 0
    return np.dtype(manifest.id_dtype).itemsize + start_bytes + group_bytes
