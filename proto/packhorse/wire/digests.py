"""Digests of streams: a dataset's own, then what is skipped and redacted."""

SKIPPING, REDACTING = "+skip=", "+redact="
"""What follows a dataset's own digest in a stream's: before the ranges that are skipped, and before redactions."""


def own_digest(digest: str) -> str:
    """Returns a dataset's own part of a digest, without what is skipped and redacted.

    Example:
        >>> own_digest("11-22-33-44+skip=5:6+redact=aa")
        '11-22-33-44'
    """
    return digest.partition(REDACTING)[0].partition(SKIPPING)[0]
