"""Checks of wire versions: whether a client can read what it asks for. The numbers are in `packhorse.wire.bin_form`."""

from packhorse.dataset import MixtureDataset, Takedown
from packhorse.server.base.faults import ServiceError
from packhorse.server.datasets.protocols import Dataset
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import PLAIN_WIRE_VERSION, WIRE_VERSION


def check_wire_version(version: int) -> None:
    """Refuses a client that is too old for every dataset, or newer than this server; the error says which is older."""
    version = max(version, 1)  # the first clients sent none
    if PLAIN_WIRE_VERSION <= version <= WIRE_VERSION:
        return
    older, newer = ("client", "server") if version < PLAIN_WIRE_VERSION else ("server", "client")
    raise _version_mismatch(
        version,
        f"this {older} is older than the {newer}: the client reads bins of wire version {version}, the server "
        f"sends versions {PLAIN_WIRE_VERSION} to {WIRE_VERSION}; upgrade packhorse on the {older}'s side to the "
        f"release of the {newer}",
    )


def check_reads(dataset: Dataset, takedown: Takedown, version: int) -> None:
    """Refuses a client that is too old for a dataset or its takedown: it would train on what it cannot read."""
    version = max(version, 1)  # the first clients sent none
    if version >= WIRE_VERSION:
        return
    newer_forms = {
        "is a mixture": isinstance(dataset, MixtureDataset),
        "has groups of sequences": dataset.has_groups,
        "has resources": bool(dataset.manifest.resources),
        "has something taken away by file, on which the client would train": bool(takedown),
    }
    needed = [form for form, is_needed in newer_forms.items() if is_needed]
    if needed:
        raise _version_mismatch(
            version,
            f"{dataset.name!r} {' and '.join(needed)}; that takes bins of wire version {WIRE_VERSION}, and this "
            f"client, which is older, reads version {version}: upgrade packhorse on the client's side to the "
            "release of the server",
        )


def _version_mismatch(version: int, message: str) -> ServiceError:
    return ServiceError(
        pb.ERROR_REASON_VERSION_MISMATCH,
        message,
        {"client_version": str(version), "server_version": str(WIRE_VERSION)},
    )
