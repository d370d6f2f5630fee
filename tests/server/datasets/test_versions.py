"""Clients and servers of other versions: each is told which side to upgrade."""

import grpc
import numpy as np
import pytest
import xxhash
from tests.flat_words import prepare

from packhorse.client import RetryPolicy
from packhorse.client.api import Client
from packhorse.client.errors import VersionMismatchError
from packhorse.client.transport.grpc_errors import exception_of
from packhorse.client.transport.requests import topology_message
from packhorse.prepare import Resource
from packhorse.server.base.faults import ServiceError
from packhorse.server.datasets.lazy_catalog import LazyCatalog
from packhorse.server.datasets.mixtures import Mixtures
from packhorse.server.methods.backend import Backend
from packhorse.topology import Topology
from packhorse.v1 import packing_pb2 as pb
from packhorse.v1 import packing_pb2_grpc
from packhorse.wire import PLAIN_WIRE_VERSION, WIRE_VERSION, header_checksum

CALLS = {
    "StreamBins": lambda version: pb.StreamBinsRequest(dataset="rows", wire_version=version),
    "GetBins": lambda version: pb.GetBinsRequest(dataset="rows", positions=[0], wire_version=version),
    "PackStream": lambda version: iter(
        [pb.PackStreamRequest(options=pb.PackStreamOptions(max_seq_len=5, lookahead_sequences=2, wire_version=version))]
    ),
}


@pytest.mark.parametrize("method", CALLS)
@pytest.mark.parametrize(
    ("version", "read", "side"), [(0, 1, "client"), (1, 1, "client"), (WIRE_VERSION + 1, WIRE_VERSION + 1, "server")]
)
def test_a_server_refuses_another_version_and_says_who_is_older(running_server, method, version, read, side):
    with grpc.insecure_channel(running_server.target) as channel:
        answer = getattr(packing_pb2_grpc.PackingServiceStub(channel), method)
        with pytest.raises(grpc.RpcError) as caught:
            list(answer(CALLS[method](version))) if method != "GetBins" else answer(CALLS[method](version))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED  # which clients of version 1 do not try again
    assert f"this {side} is older" in caught.value.details()
    error = exception_of(caught.value, "target")
    assert isinstance(error, VersionMismatchError)
    assert f"upgrade packhorse on the {side}'s side" in str(error)
    assert error.metadata == {"client_version": str(read), "server_version": str(WIRE_VERSION)}


def test_a_client_of_the_plain_version_reads_what_needs_no_more(running_server):
    with grpc.insecure_channel(running_server.target) as channel:
        stub = packing_pb2_grpc.PackingServiceStub(channel)
        answers = [
            stub.GetBins(pb.GetBinsRequest(dataset="rows", positions=[0], wire_version=version))
            for version in (PLAIN_WIRE_VERSION, WIRE_VERSION)
        ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("pairs", "'pairs' has groups of sequences;"),
        ("mixed", "'mixed' is a mixture and has groups of sequences;"),
        ("images", "'images' has resources;"),
    ],
)
def test_a_client_that_would_miss_what_a_dataset_has_is_refused(tmp_path, name, what):
    prepare(lengths=np.array([3, 4, 5, 2]), group_size=2, max_seq_len=9, output=tmp_path / "pairs", progress=False)
    table = np.array([(3, 1), (4, 0)], [("n", int), ("tiles", int)])
    resources = (Resource(name="tiles", column="tiles", cap=2),)
    words = {"length_column": "n", "resources": resources, "max_seq_len": 9, "progress": False}
    prepare(lengths=table, output=tmp_path / "images", **words)
    (tmp_path / "mixed.mixture.toml").write_text("epoch_bins = 2\n\n[[stages]]\nweights = {pairs = 1}\n")
    backend = Backend(Mixtures(LazyCatalog(tmp_path, set())))
    topology = topology_message(Topology())
    for ask in (
        lambda version: backend.get_bins(pb.GetBinsRequest(dataset=name, positions=[0], wire_version=version)),
        lambda version: list(
            backend.stream_bins(pb.StreamBinsRequest(dataset=name, topology=topology, wire_version=version))
        ),
    ):
        assert ask(WIRE_VERSION)
        with pytest.raises(ServiceError, match=what) as caught:
            ask(PLAIN_WIRE_VERSION)
        assert caught.value.reason == pb.ERROR_REASON_VERSION_MISMATCH
        assert "upgrade packhorse on the client's side" in str(caught.value)
        assert caught.value.metadata == {"client_version": str(PLAIN_WIRE_VERSION), "server_version": str(WIRE_VERSION)}


EMPTY = xxhash.xxh3_64_intdigest(bytes(40))
"""What a server of version 1 says of no bins."""


class OldServer:
    """Answers as servers of wire version 1 did: lengths and ends in fields that are unknown today."""

    target = "old"
    has_answered = True

    def bins(self):
        fields = {2: np.array([5, 4], "<i4"), 3: np.array([1, 2], "<u4"), 4: np.array([0, 1], "<i8")}
        unknown = b"".join(bytes([number << 3 | 2, array.nbytes]) + array.tobytes() for number, array in fields.items())
        return pb.Bins.FromString(pb.Bins(ids=bytes(8), checksum=12345).SerializeToString() + unknown)

    def answer(self, method, request, timeout_seconds):
        return pb.GetBinsResponse(digest="d", id_type=pb.ID_TYPE_UINT32, bins=self.bins())

    def stream(self, method, request, timeout_seconds):
        if isinstance(request, pb.StreamBinsRequest):
            header = pb.StreamHeader(digest="d", num_steps=1, id_type=pb.ID_TYPE_UINT32)
            header.checksum = header_checksum(request, header)
            yield pb.StreamBinsResponse(header=header)
            yield pb.StreamBinsResponse(block=pb.StreamBlock(num_steps=1, bins=self.bins()))
        else:
            for message in request:
                is_first = message.HasField("options")
                yield pb.PackStreamResponse(bins=pb.Bins(checksum=EMPTY) if is_first else self.bins())


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.get_bins("rows", positions=[0, 1]),
        lambda client: list(client.stream_bins("rows", topology=Topology(batch_size=2))),
        lambda client: client.pack_stream(9).send([1, 2], [5, 4]),
    ],
    ids=["get_bins", "stream_bins", "pack_stream"],
)
def test_a_client_says_that_the_server_is_older(call):
    with pytest.raises(VersionMismatchError, match="upgrade packhorse on the server's side") as caught:
        call(Client(OldServer(), RetryPolicy(deadline_seconds=5)))
    assert caught.value.metadata == {"client_version": str(WIRE_VERSION), "server_version": "1"}
