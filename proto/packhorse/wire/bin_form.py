"""The form of bins in messages: its versions, and reserved values of its arrays.

The arrays themselves are documented in v1/packing.proto. Leaves filling them to `server/methods/messages`, and
reading them to `client/streams/blocks`.
"""

import xxhash

from packhorse.v1 import packing_pb2 as pb

WIRE_VERSION = 3
"""The newest form of a message of bins. Version 1 sent every sequence's length; version 2 sends templates instead;
version 3 adds groups, components of mixtures and their rows, and redactions. No request asks for version 1."""

PLAIN_WIRE_VERSION = 2
"""The form of bins that have no groups, components, rows or redactions; older clients can still decode it."""

KEPT_TEMPLATES = 1 << 16
"""Number from which on a template is valid in its message only; one with a lower number is valid until the stream ends.
This bounds what both ends remember, whatever the size of the plan."""

ADDED_OFFSET = (1 << 32) - 1
"""In `position_offsets`: a bin that the remainder policy added, which has no position."""

MASKED_TOKEN = (1 << 32) - 1
"""In `redacted_tokens`: no token. The sequence keeps its own tokens and is only masked from the loss."""


def is_of_version_1(bins: pb.Bins, context: int = 0) -> bool:
    """Returns whether a server of wire version 1 made a message of bins. That version has no templates.

    Example:
        >>> is_of_version_1(pb.Bins(ids=b"abcd")), is_of_version_1(pb.Bins(ids=b"abcd", templates=b"abcd"))
        (True, False)

    Args:
        bins: the message.
        context: as for `packhorse.wire.bins_checksum`.
    """
    if bins.templates:
        return False
    # A message without bins has no ids in any version. Version 1 hashed five empty arrays then: five sizes of 0.
    return bool(bins.ids) or bins.checksum == xxhash.xxh3_64_intdigest(bytes(5 * 8), seed=context)
