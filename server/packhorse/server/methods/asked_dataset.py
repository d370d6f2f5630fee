"""Which dataset a request is about: its name, its digest, and the positions that it skips.

Owns the refusal of a cursor that is of another dataset. Leaves which datasets there are to `datasets.catalog`.
"""

from collections.abc import Collection, Mapping

from packhorse.dataset import MixtureDataset, Takedown, differing_parts, parts_at
from packhorse.server.base.faults import ServiceError, invalid_field, too_large
from packhorse.server.datasets.protocols import Dataset, Datasets
from packhorse.topology import Skips
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import REDACTING, SKIPPING, own_digest

MAX_SKIPS = 1000
"""Ranges of positions that a request may leave out."""

MAX_SKIPS_READ = 5_000
"""Most ranges of an expected digest that are compared one by one, in about 10 ms. A run with more continues as long as
their text stays the same."""


def check_num_skips(ranges: Collection[pb.PositionRange]) -> None:
    """Refuses a request that skips more than MAX_SKIPS ranges."""
    if len(ranges) > MAX_SKIPS:
        raise too_large("skip", MAX_SKIPS, f"skip holds {len(ranges)} ranges; give at most {MAX_SKIPS}")


def skips_of(ranges: Collection[pb.PositionRange]) -> Skips:
    """Returns the positions that a request skips; raises a ServiceError if its ranges are wrong."""
    check_num_skips(ranges)
    try:
        return Skips.of([(each.first, each.end) for each in ranges])
    except ValueError as error:
        raise invalid_field("skip", str(error)) from None


def digest_of(dataset: Dataset, skips: Skips, takedown: Takedown) -> str:
    """Returns the digest of a dataset with skipped ranges and redactions."""
    digest = f"{dataset.manifest.digest}{SKIPPING}{skips}" if skips else dataset.manifest.digest
    return f"{digest}{REDACTING}{takedown.digest}" if takedown.digest else digest


def get_dataset(catalog: Datasets, name: str, dataset_digest: str, expected_digest: str = "") -> Dataset:
    """Returns the dataset or mixture that a request is about.

    Args:
        catalog: the datasets that are served.
        name: name of the dataset or mixture.
        dataset_digest: the digest in earlier answers to this client; empty for any.
        expected_digest: the digest that the run began with, see `check_digest`; empty for any.

    Raises:
        ServiceError: no dataset has that name, or it is not the one of the earlier answers.
    """
    dataset = catalog.get(name, dataset_digest or own_digest(expected_digest))
    actual = dataset.manifest.digest
    if not dataset_digest or actual == dataset_digest:
        return dataset
    if isinstance(dataset, MixtureDataset) and parts_at(dataset_digest, dataset.chain) != 0:
        return dataset  # its stages differ from a later position on: `check_digest` looks whether the run is there yet
    differs = ["stages"] if isinstance(dataset, MixtureDataset) else _differing(dataset_digest, actual)
    raise ServiceError(
        pb.ERROR_REASON_DIGEST_MISMATCH,
        f"dataset {name!r} is not the one that answered this client before: {', '.join(differs)} differ; replicas must "
        "serve the same data under one name. Connect again to read the other, or serve the earlier one everywhere",
        {"expected": dataset_digest, "actual": actual, "dataset": name, "differs": ",".join(differs)},
    )


def check_digest(
    dataset: Dataset,
    skips: Skips,
    expected: str,
    *,
    epoch: int,
    before: int | None = None,
    takedown: Takedown,
) -> None:
    """Refuses a dataset with another digest than the request expects, saying what differs.

    Redactions change no bin, so no digest is refused for them.

    Args:
        dataset: the one that the request names.
        skips: all skipped ranges, of the request and of takedown files.
        expected: the digest that the run began with; empty for any.
        epoch: the request's epoch.
        before: only differences before this position count; without skipped positions. It is where a stream begins, or
            where another request ends. None for the epoch's end.
        takedown: what files take away from the dataset.
    """
    if not expected:
        return
    facts = {"expected": expected, "actual": digest_of(dataset, skips, takedown), "dataset": dataset.name}
    # The parts of the digest that the run began with, as `digest_of` joins them.
    without_redactions, _, _ = expected.partition(REDACTING)
    expected_dataset, _, expected_skips = without_redactions.partition(SKIPPING)
    if isinstance(dataset, MixtureDataset):
        _check_stages(dataset, skips, expected_dataset, epoch, before, facts)
    elif differs := _differing(expected_dataset, dataset.manifest.digest):
        raise ServiceError(
            pb.ERROR_REASON_DIGEST_MISMATCH,
            f"dataset {dataset.name!r} is not the one that this run began with: {', '.join(differs)} differ "
            f"(max_seq_len is {dataset.manifest.max_seq_len} here); serve the old dataset again, or start a new run",
            {**facts, "differs": ",".join(differs)},
        )
    if expected_skips != str(skips):
        _check_skips(dataset, skips, expected_skips, before, facts)


def _check_skips(dataset: Dataset, skips: Skips, expected: str, before: int | None, facts: Mapping[str, str]) -> None:
    """Refuses skipped ranges other than those of the run, which `expected` has as text; the rest as `check_digest`."""
    run_skips = _skips_in(expected)
    if run_skips is None or before is None:
        differ = run_skips != skips
    else:
        differ = run_skips.before(before) != skips.before(before)
    if differ:
        named = f"{expected.count(',') + 1} ranges" if run_skips is None else f"the positions {run_skips or 'none'}"
        raise ServiceError(
            pb.ERROR_REASON_DIGEST_MISMATCH,
            f"this run has skipped {named} of dataset {dataset.name!r}, now {skips or 'none'} "
            "are to be skipped: ranges before the cursor must stay as they were, because positions do not count them; "
            "add ranges after the cursor only",
            {**facts, "differs": "skip"},
        )


def _skips_in(text: str) -> Skips | None:
    """Returns the skipped ranges in the text of a digest; None if they are too many to be read for one request."""
    if text.count(",") >= MAX_SKIPS_READ:
        return None
    try:
        return Skips.parse([text])
    except ValueError as error:
        raise invalid_field("expected_digest", f"expected_digest is not a digest of a server: {error}") from None


def _differing(expected: str, actual: str) -> list[str]:
    """Returns the names of the parts in which two digests of datasets differ."""
    return [] if expected == actual else differing_parts(expected, actual)


def _check_stages(
    mixture: MixtureDataset, skips: Skips, expected: str, epoch: int, before: int | None, facts: dict[str, str]
) -> None:
    """Refuses a mixture that differs, before the position that a run has reached, from the one it began with.

    `before` is this position as in `check_digest`.
    """
    parts_from = parts_at(expected, mixture.chain)  # position of the run from which they differ; None if they do not
    if parts_from is None:
        return
    end_in_epoch = mixture.num_bins
    if before is not None:
        end_in_epoch = skips.to_whole(before - 1) + 1 if before else 0
    reached = epoch * mixture.num_bins + min(end_in_epoch, mixture.num_bins)
    if reached > parts_from:
        epoch_of_parting, position = divmod(parts_from, mixture.num_bins)
        at = f"at position {position} of epoch {epoch_of_parting}" if parts_from else "from the beginning"
        raise ServiceError(
            pb.ERROR_REASON_DIGEST_MISMATCH,
            f"mixture {mixture.name!r} departs {at} ({parts_from} of the run) from the one that this run began with, "
            f"and the run has reached {reached}: expected {expected}, got {mixture.manifest.digest}; resume from a "
            "cursor at or before that position, or restore the stages that the run began with",
            {**facts, "differs": "stages", "departs": str(parts_from)},
        )
