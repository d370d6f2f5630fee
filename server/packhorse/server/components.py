"""What the service says of a mixture: its components and its stages, as messages.

Owns these two; leaves what they are to `packhorse.dataset`.
"""

from collections.abc import Iterator

from packhorse.dataset import MixtureDataset
from packhorse.epoch import MixtureEpoch
from packhorse.server.served import Served
from packhorse.v1 import packing_pb2 as pb


def components_of(served: Served, epoch: object = None) -> Iterator[pb.Component]:
    """Yields what a mixture is made of; nothing for a prepared dataset.

    Args:
        served: what is asked for.
        epoch: one of its epochs, whole: each component then tells what the epoch takes of it.
    """
    if not isinstance(served, MixtureDataset):
        return
    given = epoch.given if isinstance(epoch, MixtureEpoch) else [None] * len(served.datasets)
    for dataset, taken in zip(served.datasets, given, strict=True):
        manifest = dataset.manifest
        component = pb.Component(
            name=dataset.name,
            digest=manifest.digest,
            max_seq_len=manifest.max_seq_len,
            num_bins=manifest.n_bins,
            num_sequences=manifest.n_sequences,
            own_tokens=manifest.own_tokens,
            over_length=manifest.options.over_length,
            keep=manifest.options.keep,
            id_column=manifest.id_column or "",
        )
        if taken is not None:
            component.first_epoch, component.first_position, component.num_taken = taken
        yield component


def stages_of(served: Served) -> Iterator[pb.Stage]:
    """Yields a mixture's stages; nothing for a prepared dataset."""
    if isinstance(served, MixtureDataset):
        for (first, digest), shares in zip(served.chain, served.shares, strict=True):
            yield pb.Stage(first_position=first, digest=digest, shares=map(str, shares))
