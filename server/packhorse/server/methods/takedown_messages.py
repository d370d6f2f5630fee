"""Takedowns as messages: their redactions, and the positions that they skip.

Datasets and mixtures are in `dataset_messages`.
"""

from packhorse.dataset import Takedown
from packhorse.v1 import packing_pb2 as pb


def takedown_message(takedown: Takedown) -> pb.Takedown:
    """Returns the redactions and skips of a takedown."""
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
