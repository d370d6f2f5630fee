"""The errors for datasets and mixtures that a request cannot have.

Owns their words, which name no path of this machine. Leaves when they are raised to `catalog` and `mixtures`.
"""

from collections.abc import Sequence
from pathlib import Path

from packhorse.dataset import PreparedDatasetError
from packhorse.server.base.faults import ServiceError
from packhorse.v1 import packing_pb2 as pb

MOST_NAMES = 8
"""How many datasets a message names: one that named thousands would be too long for a header."""

_MOST_CHARACTERS = 80  # of an unknown name


def no_dataset(name: str, names: Sequence[str]) -> ServiceError:
    """Returns the error for a name that no dataset has, with some of the existing names."""
    some = ", ".join(names[:MOST_NAMES]) or "none"
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    shown = name if len(name) <= _MOST_CHARACTERS else f"{name[:_MOST_CHARACTERS]}…"
    return ServiceError(
        pb.ERROR_REASON_DATASET_NOT_FOUND,
        f"no dataset is named {shown!r}; this server has: {some}{more}",
        {"dataset": shown},
    )


def no_mixture(name: str) -> ServiceError:
    """Returns the error for a stage that is to be appended to a prepared dataset."""
    return ServiceError(
        pb.ERROR_REASON_INVALID_FIELD,
        f"{name} is a prepared dataset; stages can be appended to mixtures only",
        {"field": "dataset"},
    )


def not_served(name: str, reason: str) -> ServiceError:
    """Returns the error for a dataset or mixture whose files cannot be used."""
    return ServiceError(pb.ERROR_REASON_DATASET_CORRUPT, f"dataset {name!r} is not served: {reason}", {"dataset": name})


def reason_of(folder: Path, error: Exception) -> str:
    """Returns why a folder cannot be opened, as clients may read it: without paths of this machine or traces."""
    if isinstance(error, PreparedDatasetError):
        return str(error)
    if isinstance(error, OSError):
        return f"{folder.name} cannot be read: {error.strerror}"
    return f"{folder.name} cannot be opened: {type(error).__name__}; the server's log has the details"
