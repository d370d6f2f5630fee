"""What the client asks of a transport: every method of the service, by one name."""

import pytest

from packhorse.client.errors import NotImplementedByServerError
from packhorse.client.transport import methods as transport_module
from packhorse.client.transport.embedded import EmbeddedPlanner
from packhorse.client.transport.methods import GET_DATASET, PACK_SEQUENCES, STREAM_BINS, Method
from packhorse.v1 import packing_pb2 as pb

METHODS = [value for value in vars(transport_module).values() if isinstance(value, Method)]


def test_the_methods_are_those_of_the_service(embedded):
    service = pb.DESCRIPTOR.services_by_name["PackingService"]
    of_servers = {"GetActivity"}  # asked by `ask_activity`, of every replica
    assert {method.rpc for method in METHODS} | of_servers == set(service.methods_by_name)
    assert all(hasattr(embedded._transport._backend, method.name) for method in METHODS)


def test_a_planner_packs_and_says_what_it_cannot_answer():
    planner = EmbeddedPlanner()
    request = pb.PackSequencesRequest(lengths=[3, 5], max_seq_len=8)
    assert len(planner.answer(PACK_SEQUENCES, request).bin_ends) == 4
    with pytest.raises(NotImplementedByServerError, match="GetDataset needs a dataset: connect to embedded:DIR"):
        planner.answer(GET_DATASET, pb.GetDatasetRequest(name="rows"))
    with pytest.raises(NotImplementedByServerError, match="StreamBins needs a dataset"):
        next(planner.stream(STREAM_BINS, pb.StreamBinsRequest(dataset="rows")))
