"""What the service says of a mixture's components and stages, and of what is taken away, as messages.

Owns these three; leaves what they are to `packhorse.dataset`.
"""

from collections.abc import Iterator

from packhorse.dataset import MixtureDataset, Takedown
from packhorse.epoch import MixtureEpoch
from packhorse.server.datasets.served import Served
from packhorse.v1 import packing_pb2 as pb


def components_of(served: Served, epoch: object = None) -> Iterator[pb.Component]:
    """Yields what a mixture is made of; nothing for a prepared dataset.

    Args:
        served: what is asked for.
        epoch: one of its epochs, whole: each component then tells what the epoch takes of it.
    """
    if not isinstance(served, MixtureDataset):
        return
    given = epoch.taken if isinstance(epoch, MixtureEpoch) else [None] * len(served.datasets)
    facts = zip(served.datasets, given, served.component_bins, served.rows_per_bin, strict=True)
    for dataset, taken, num_bins, rows in facts:
        manifest = dataset.manifest
        component = pb.Component(
            name=dataset.name,
            digest=manifest.digest,
            max_seq_len=manifest.max_seq_len,
            num_bins=num_bins,
            num_sequences=manifest.n_sequences,
            own_tokens=manifest.own_tokens,
            over_length=manifest.options.over_length,
            keep=manifest.options.keep,
            id_column=manifest.id_column or "",
            key_column=manifest.keys.column if manifest.keys else "",
            rows_per_bin=rows if rows > 1 else 0,
        )
        if taken is not None:
            component.first_epoch, component.first_position, component.num_taken = taken
        yield component


def stages_of(served: Served) -> Iterator[pb.Stage]:
    """Yields a mixture's stages; nothing for a prepared dataset."""
    if isinstance(served, MixtureDataset):
        per_draw = served.file.bins_per_draw
        for (first, digest), shares in zip(served.chain, served.shares, strict=True):
            yield pb.Stage(
                first_position=first,
                digest=digest,
                shares=map(str, shares),
                bins_per_draw=per_draw if per_draw > 1 else 0,
            )


def takedown_message(takedown: Takedown) -> pb.Takedown:
    """Returns what is taken away by file."""
    message = pb.Takedown(digest=takedown.digest)
    for redaction, digest in zip(takedown.redactions, takedown.digests, strict=True):
        message.redactions.append(
            pb.Redaction(
                component=redaction.component,
                num_ids=len(redaction.ids),
                token=redaction.token,
                reason=redaction.reason,
                seed=redaction.seed,
                from_position=redaction.from_position,
                digest=digest,
            )
        )
    for entry in takedown.skips:
        for first, end in entry.positions.ranges:
            message.skips.append(
                pb.TakedownSkip(first=first, end=end, epoch=entry.epoch, seed=entry.seed, reason=entry.reason)
            )
    return message
