"""The digest of a stream: the dataset's own digest, followed by what the stream skips and redacts.

Leaves the digest of a dataset to `packhorse.dataset`.
"""

SKIPPING, REDACTING = "+skip=", "+redact="
"""What comes before the skipped ranges, and before the digest of the redactions."""


def own_digest(digest: str) -> str:
    """Returns the dataset's own digest from a stream's, without what is skipped and redacted.

    Example:
        >>> own_digest("11-22-33-44+skip=5:6+redact=aa")
        '11-22-33-44'
    """
    return digest.partition(REDACTING)[0].partition(SKIPPING)[0]
