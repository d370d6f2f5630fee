"""The stage in an AppendStage request: its weights, checked.

Appending it is in `mixtures`; the checks of topologies are in `requests`.
"""

from decimal import Decimal, InvalidOperation

from packhorse.dataset import StageEntry
from packhorse.epoch import WeightsBy
from packhorse.server.base.faults import invalid_field
from packhorse.v1 import packing_pb2 as pb


def stage_of(request: pb.AppendStageRequest) -> StageEntry | None:
    """Returns the stage to append, with checked weights; None if stages are only removed."""
    if request.replace and not request.weights:
        return None
    try:
        by = WeightsBy(request.by or WeightsBy.BINS)
    except ValueError:
        raise invalid_field("by", f"by must be one of {', '.join(WeightsBy)}, got {request.by[:80]!r}") from None
    weights: dict[str, int | Decimal] = {}
    for each in request.weights:
        if each.component in weights:
            raise invalid_field("weights", f"weights name {each.component[:80]!r} twice; give each component one")
        try:
            weights[each.component] = Decimal(each.weight)
        except InvalidOperation:
            raise invalid_field(
                "weights", f"weights: that of {each.component[:80]!r} is not a number: {each.weight[:80]!r}"
            ) from None
    if not weights:
        raise invalid_field("weights", "weights must give components numbers, e.g. web 60 and code 40")
    try:
        return StageEntry(weights=weights, by=by)
    except ValueError as error:
        raise invalid_field("weights", str(error)) from None
