"""What both ends of the wire agree on beside its messages: checksums of blocks, addresses that may carry plain text.

Beside v1, because server and client must agree on it to the bit.
"""

from packhorse.wire.addresses import is_local
from packhorse.wire.checksums import (
    LocationsChecksum,
    bins_checksum,
    block_context,
    get_bins_context,
    header_checksum,
)
from packhorse.wire.ids import ids_sum

__all__ = [
    "LocationsChecksum",
    "bins_checksum",
    "block_context",
    "get_bins_context",
    "header_checksum",
    "ids_sum",
    "is_local",
]
