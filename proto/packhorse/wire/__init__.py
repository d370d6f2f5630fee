"""What server and client share beside the messages: the form of bins, checksums, and addresses for plain text.

Both ends must agree on all of it to the bit, except `keep_freed_memory`, which both merely use.
"""

from packhorse.wire.addresses import is_local
from packhorse.wire.checksums import (
    BIN_ARRAYS,
    HeaderChecksums,
    LocationsChecksum,
    arrays_checksum,
    bins_checksum,
    block_context,
    get_bins_context,
    header_checksum,
    is_of_version_1,
    tokens_checksum,
)
from packhorse.wire.fingerprints import ids_sum, rows_of_fingerprint, tokens_fingerprint
from packhorse.wire.freed_memory import give_back_freed_memory, keep_freed_memory
from packhorse.wire.streams import (
    ADDED_OFFSET,
    KEPT_TEMPLATES,
    MASKED_TOKEN,
    PLAIN_WIRE_VERSION,
    REDACTING,
    SKIPPING,
    WIRE_VERSION,
    EpochKey,
    own_digest,
    steps_of_ranks,
    stream_positions,
)

__all__ = [
    "ADDED_OFFSET",
    "BIN_ARRAYS",
    "KEPT_TEMPLATES",
    "MASKED_TOKEN",
    "PLAIN_WIRE_VERSION",
    "REDACTING",
    "SKIPPING",
    "WIRE_VERSION",
    "EpochKey",
    "HeaderChecksums",
    "LocationsChecksum",
    "arrays_checksum",
    "bins_checksum",
    "block_context",
    "get_bins_context",
    "give_back_freed_memory",
    "header_checksum",
    "ids_sum",
    "is_local",
    "is_of_version_1",
    "keep_freed_memory",
    "own_digest",
    "rows_of_fingerprint",
    "steps_of_ranks",
    "stream_positions",
    "tokens_checksum",
    "tokens_fingerprint",
]
