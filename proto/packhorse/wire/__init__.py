"""What server and client both compute besides messages: constants of the form of bins, checksums, fingerprints.

Both ends must agree on these to the bit. Four things are here only because both ends use them: the default address,
which addresses are safe without TLS, the end of certificates, and settings of the C library's allocator.
"""

from packhorse.wire.addresses import DEFAULT_ADDRESS, is_local
from packhorse.wire.bin_form import (
    ADDED_OFFSET,
    KEPT_TEMPLATES,
    MASKED_TOKEN,
    PLAIN_WIRE_VERSION,
    WIRE_VERSION,
    is_of_version_1,
)
from packhorse.wire.bins_checksums import BIN_ARRAYS, arrays_checksum, bins_checksum, tokens_checksum
from packhorse.wire.checksums import (
    HeaderChecksums,
    LocationsChecksum,
    block_context,
    get_bins_context,
    header_checksum,
)
from packhorse.wire.digests import REDACTING, SKIPPING, own_digest
from packhorse.wire.fingerprints import rows_of_fingerprint, tokens_fingerprint
from packhorse.wire.freed_memory import give_back_freed_memory, keep_freed_memory
from packhorse.wire.id_sums import ids_sum
from packhorse.wire.rank_steps import EpochKey, steps_of_ranks
from packhorse.wire.stream_positions import stream_positions

__all__ = [
    "ADDED_OFFSET",
    "BIN_ARRAYS",
    "DEFAULT_ADDRESS",
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
