"""The form in which bins travel: its versions, and numbers with a meaning of their own.

Both ends must agree on them exactly. Leaves the arrays to the server that fills them and the client that reads them.
"""

WIRE_VERSION = 3
"""The newest form of a message of bins. Version 1, which no request names, sent every sequence's length; 2 sends
templates; 3 also sends groups, components of mixtures and their rows, and redactions."""

PLAIN_WIRE_VERSION = 2
"""The form of bins that have no groups, components, rows or redactions; older clients can still decode it."""

KEPT_TEMPLATES = 1 << 16
"""Templates with lower numbers hold for the rest of a stream, others for their message only. This bounds what both ends
remember, whatever the size of the plan."""

ADDED_OFFSET = (1 << 32) - 1
"""The position offset of a bin that the remainder policy added."""

MASKED_TOKEN = (1 << 32) - 1
"""Means "no token": the sequence keeps its own tokens, and is masked from the loss."""
