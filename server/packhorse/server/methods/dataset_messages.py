"""Datasets and mixtures as messages.

Takedowns are in `takedown_messages`.
"""

from collections.abc import Iterator
from dataclasses import asdict, fields

from packhorse.dataset import Manifest, MixtureDataset, SkippedRows
from packhorse.epoch import MixtureEpoch, Source
from packhorse.server.datasets.protocols import Dataset
from packhorse.v1 import packing_pb2 as pb

ID_TYPES = {"uint32": pb.ID_TYPE_UINT32, "int64": pb.ID_TYPE_INT64}
"""Dtype of ids → its name on the wire."""

_SAME_FIELDS = [
    each.name
    for each in fields(Manifest)
    if each.name in pb.Dataset.DESCRIPTOR.fields_by_name and each.name not in ("over_length", "resources")
]
"""Fields that the Dataset message and the manifest have under the same names and with the same types (`over_length` and
`resources` have other types). A new one needs no line here."""


def dataset_message(dataset: Dataset) -> pb.Dataset:
    """Returns the facts of a dataset or mixture, without what files take away from it."""
    manifest = dataset.manifest
    skipped = manifest.inputs.skipped if manifest.inputs else SkippedRows()
    return pb.Dataset(
        **{name: getattr(manifest, name) for name in _SAME_FIELDS},
        name=dataset.name,
        max_seq_len=manifest.max_seq_len,
        max_sequences_per_bin=dataset.max_sequences_per_bin,
        id_type=ID_TYPES[manifest.id_dtype],
        over_length=manifest.options.over_length,
        align=manifest.options.align,
        extra_tokens=manifest.options.extra_tokens,
        keep=manifest.options.keep,
        key_column=manifest.keys.column if manifest.keys else "",
        over_length_sequences=manifest.over_length.sequences,
        over_length_source_tokens=manifest.over_length.source_tokens,
        over_length_tokens=manifest.over_length.tokens,
        skipped_rows=skipped.rows,
        skipped_by_reason=skipped.by_reason,
        num_groups=manifest.groups.num_groups if manifest.groups and manifest.is_grouped else 0,
        shares_prefixes=manifest.shares_prefixes,
        components=components_of(dataset),
        stages=stages_of(dataset),
        context_rule=context_rule_of(manifest),
        resources=(
            pb.Resource(name=each.name, cap=each.cap, total=each.total, most=each.most) for each in manifest.resources
        ),
    )


def context_rule_of(manifest: Manifest) -> pb.ContextRule | None:
    """Returns how several ranks share a bin; None if each bin is of one rank."""
    rule = manifest.options.context
    return None if rule is None else pb.ContextRule(**asdict(rule))


def components_of(mixture: Dataset, epoch: Source | None = None) -> Iterator[pb.Component]:
    """Yields a mixture's components; nothing for a prepared dataset.

    Args:
        mixture: or a prepared dataset.
        epoch: one of its epochs, with nothing left out: each component then says which of its bins the epoch takes.
    """
    if not isinstance(mixture, MixtureDataset):
        return
    ranges = epoch.taken if isinstance(epoch, MixtureEpoch) else [None] * len(mixture.datasets)
    facts = zip(mixture.datasets, ranges, mixture.component_bins, mixture.rows_per_bin, strict=True)
    for dataset, taken, num_bins, rows in facts:
        manifest = dataset.manifest
        component = pb.Component(
            name=dataset.name,
            digest=manifest.digest,
            max_seq_len=manifest.max_seq_len,
            num_bins=num_bins,
            num_sequences=manifest.num_sequences,
            own_tokens=manifest.own_tokens,
            over_length=manifest.options.over_length,
            keep=manifest.options.keep,
            id_column=manifest.id_column or "",
            key_column=manifest.keys.column if manifest.keys else "",
            rows_per_bin=rows if rows > 1 else 0,  # 1 is not sent: it means the same as 0
        )
        if taken is not None:
            component.first_epoch, component.first_position, component.num_taken = taken
        yield component


def stages_of(mixture: Dataset) -> Iterator[pb.Stage]:
    """Yields a mixture's stages; nothing for a prepared dataset."""
    if isinstance(mixture, MixtureDataset):
        bins_per_draw = mixture.file.bins_per_draw
        for (first_position, digest), shares in zip(mixture.chain, mixture.shares, strict=True):
            yield pb.Stage(
                first_position=first_position,
                digest=digest,
                shares=map(str, shares),
                bins_per_draw=bins_per_draw if bins_per_draw > 1 else 0,  # as `rows_per_bin` above
            )
