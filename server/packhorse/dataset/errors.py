"""`PreparedDatasetError`, the error of a folder that is not as it was written, and how its messages name a file."""

from pathlib import Path


class PreparedDatasetError(ValueError):
    """A prepared folder is missing, truncated, altered or inconsistent; the message says what and where."""


def short_path(path: Path) -> str:
    """Returns a file's name with its folder's name for messages, such as "corpus/pools.npy"."""
    return f"{path.parent.name}/{path.name}"
