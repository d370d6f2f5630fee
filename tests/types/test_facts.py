"""Every field of a message is a field of its class, and every field of a class comes from its message."""

from dataclasses import fields

import pytest

from packhorse.topology import ContextRule, Skips
from packhorse.types import Component, DatasetInfo, Redaction, Stage, StreamHeader, Takedown, TakenPositions
from packhorse.v1 import packing_pb2 as pb

IN_ANOTHER_FORM = {
    DatasetInfo: ({"ids_sum_a", "ids_sum_b"}, {"ids_sum"}),
    TakenPositions: ({"first", "end"}, {"positions"}),
}
"""Class → fields of its message, and the fields of the class that tell the same."""
OF_TRANSPORT = {DatasetInfo: {"id_type"}, StreamHeader: {"id_type", "checksum"}}
"""Class → fields that only decoding needs."""


@pytest.mark.parametrize("of", [Component, DatasetInfo, Redaction, Stage, StreamHeader, Takedown, TakenPositions])
def test_messages_and_classes_have_the_same_fields(of):
    sent, told = IN_ANOTHER_FORM.get(of, (set(), set()))
    of_message = {each.name for each in of.MESSAGE.DESCRIPTOR.fields}
    of_class = {each.name for each in fields(of)}
    assert of_message - sent - OF_TRANSPORT.get(of, set()) == of_class - told
    assert sent <= of_message
    assert told <= of_class


def test_what_is_unset_is_the_default_and_what_is_zero_by_choice_stays():
    info = DatasetInfo.from_proto(pb.Dataset(components=[pb.Component(name="web")], stages=[pb.Stage()]))
    assert (info.align, info.keep, info.takedown, info.max_seq_len) == (1, "head", None, 0)
    assert (info.components[0].rows_per_bin, info.components[0].keep, info.stages[0].bins_per_draw) == (1, "head", 1)
    assert info.context_rule is None
    assert Redaction.from_proto(pb.Redaction()).token is None
    assert Redaction.from_proto(pb.Redaction(token=0, seed=0)) == Redaction(num_ids=0, token=0, seed=0)


def test_messages_inside_messages_are_facts_too():
    skip = pb.TakedownSkip(first=3, end=5, epoch=0, reason="private")
    takedown = pb.Takedown(digest="d", redactions=[pb.Redaction(num_ids=2, token=7)], skips=[skip])
    told = DatasetInfo.from_proto(pb.Dataset(name="web", ids_sum_a=1, ids_sum_b=2, takedown=takedown))
    assert told.ids_sum == (1, 2)
    assert told.takedown == Takedown(
        digest="d",
        redactions=(Redaction(num_ids=2, token=7),),
        skips=(TakenPositions(positions=Skips(((3, 5),)), epoch=0, reason="private"),),
    )
    rule = {"tokens_per_rank": 256, "max_context_parallel": 4, "cost_cap_percent": 120, "cost_linear": 5}
    for kind in (DatasetInfo, StreamHeader):
        message = kind.MESSAGE(context_rule=pb.ContextRule(**rule))
        assert kind.from_proto(message).context_rule == ContextRule(**rule)
    header = StreamHeader.from_proto(pb.StreamHeader(align=8, skipped=[pb.PositionRange(first=1, end=4)]))
    assert (header.align, header.skipped) == (8, Skips(((1, 4),)))
