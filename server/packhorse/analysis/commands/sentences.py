"""Sentences that `inspect` prints, and shares in percent for its tables and those of `plan`.

Owns the wording. Leaves every figure to `packhorse.analysis`, tables to `reports`, advice to `waiting_advice`, and
sentences that `prepare` also prints to `packhorse.cli.shared.sentences`.
"""

from collections.abc import Iterator

from packhorse.analysis.counts import rule_of
from packhorse.analysis.report import DatasetReport
from packhorse.cli.shared.sentences import CUT_OFF, groups_line, keys_text, real_tokens_text, resource_lines
from packhorse.dataset import Inputs, Manifest, Version, versions_of
from packhorse.formats.left_out import left_out_text
from packhorse.types import skipped_text


def report_lines(report: DatasetReport) -> Iterator[str]:
    """Yields the sentences that `inspect` prints of a prepared folder."""
    manifest, dataset = report.dataset.manifest, report.dataset
    yield f"{dataset.name}  {manifest.digest}"
    yield repr(report.stats)
    if real := real_tokens_text(manifest):
        yield f"real tokens: {real}"
    rooms = dataset.plan.rooms
    measured = "rooms of groups" if dataset.has_groups else "lengths" if rule_of(dataset).is_plain else "rooms"
    quantiles = ", ".join(f"p{round(100 * q)} {room:,}" for q, room in report.quantiles.items())
    yield (
        f"{measured}: {rooms.min():,} to {rooms.max():,} tokens, mean {report.mean_room:,.1f}, {quantiles}; "
        f"{manifest.num_rooms:,} {'classes of sizes' if manifest.resources else 'distinct'}"
    )
    yield (
        f"plan: {manifest.algorithm}, {manifest.num_templates:,} templates, at most "
        f"{dataset.max_sequences_per_bin:,} sequences in a bin"
    )
    if (rule := manifest.options.context) is not None:
        yield f"shared bins: {rule}"
    yield (
        f"bin-mates: {report.bin_mates_again:.1%} of the {items_word(report)} that share a bin share one again in the "
        f"next epoch"
    )
    yield from _origin_lines(manifest)
    if manifest.plan_cut_off:
        yield f"cut off: {CUT_OFF}"
    if manifest.version > 1:
        yield from map(version_line, versions_of(dataset.path))
    if (ledger := manifest.over_length).sequences:
        pieces = f", {ledger.pieces:,} pieces" if ledger.pieces else ""
        over_cap = f", {ledger.over_cap:,} of them only over a cap" if ledger.over_cap else ""
        yield (
            f"over-length ({manifest.options.over_length}): {ledger.sequences:,} sequences{over_cap}, "
            f"{ledger.tokens:,} tokens left out{pieces}"
        )


def _origin_lines(manifest: Manifest) -> Iterator[str]:
    """Yields the sentences about where sequences, ids and keys come from."""
    if manifest.groups is not None and manifest.is_grouped:  # with resources there are groups that nobody asked for
        yield groups_line(manifest.groups, manifest.num_sequences)
    yield from resource_lines(manifest)
    origin = "row numbers" if manifest.id_column is None else f"column {manifest.id_column!r}"
    yield f"ids: {manifest.id_dtype}, {origin} of {manifest.source}"
    if manifest.keys is not None:
        yield f"keys: {keys_text(manifest.keys)}"
    if manifest.inputs is not None:
        yield f"read: {_read_text(manifest.inputs)}"
        if skipped := manifest.inputs.skipped.rows:
            by_reason = manifest.inputs.skipped.by_reason
            yield f"skipped: {skipped_text(skipped, by_reason)}; manifest.json or skipped.jsonl names them"
        if manifest.inputs.left_out:
            yield f"not in the tokens, as tokenize left it out: {left_out_text(manifest.inputs.left_out)}"


def _read_text(inputs: Inputs) -> str:
    """Returns a sentence about what was read: kind, column, rows and files."""
    column = "" if inputs.length_column is None else f", column {inputs.length_column!r}"
    size_bytes = sum(file.size_bytes for file in inputs.files)
    if not inputs.num_files:  # a shard, or what was held in memory
        files = ""
    elif inputs.num_files <= len(inputs.files):  # the manifest names all; of very many, only the first
        files = f", {inputs.num_files:,} file{'s' * (inputs.num_files != 1)} of {size_bytes:,} bytes"
    else:
        files = f", {inputs.num_files:,} files, the first {len(inputs.files)} of {size_bytes:,} bytes"
    return f"{inputs.kind}{column}, {inputs.rows:,} rows{files}"


def items_word(report: DatasetReport) -> str:
    """Returns the word for the items that the plan packs: "sequences" or "groups"."""
    return "groups" if report.dataset.has_groups else "sequences"


def version_line(version: Version) -> str:
    """Returns one line about a version of a dataset."""
    manifest = version.manifest
    current = " (current)" if version.is_current else ""
    return (
        f"version {version.number}{current}: {manifest.num_sequences:,} sequences in {manifest.num_bins:,} bins, "
        f"digest {manifest.digest}, in {version.path}"
    )


def percent(share: float) -> str:
    """Returns a share in percent for a sentence: no decimals from 10 %, one below 10 %, two below 1 %.

    Of less than 0.01 %, also of none, it says only that.

    Example:
        >>> percent(0.348), percent(0.0204), percent(0.00001)
        ('35%', '2.0%', '< 0.01%')
    """
    value = 100 * share
    if value < 0.01:
        return "< 0.01%"
    return f"{value:.{0 if value >= 10 else 1 if value >= 1 else 2}f}%"
