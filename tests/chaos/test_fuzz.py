"""Requests of no client: mutated messages and raw bytes. Nothing comes back but documented statuses, nothing breaks."""

import contextlib
import os
import random
import socket
import struct
from collections import Counter

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from packhorse.client import connect
from packhorse.server.status import STATUS_OF_REASON
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import WIRE_VERSION

SERVICE = "/packhorse.v1.PackingService/"
DOCUMENTED = {*STATUS_OF_REASON.values()} - {grpc.StatusCode.INTERNAL}
CALL_SECONDS = 60
MOST_MESSAGES = 3
"""Read of a stream before it is left."""
GROWTH_BYTES = 150 << 20
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
TOPOLOGY = pb.Topology(
    world_size=2,
    workers_per_rank=2,
    batch_size=4,
    remainder=pb.REMAINDER_POLICY_SPREAD,
    mode=pb.STREAM_MODE_PARTITION,
    balance=pb.BALANCE_MICRO_STEP,
    accumulation=2,
    cost_linear=3,
)
SKIP = [pb.PositionRange(first=3, end=9)]
GOOD = [
    ("ListDatasets", pb.ListDatasetsRequest()),
    ("GetDataset", pb.GetDatasetRequest(name="rows")),
    ("GetActivity", pb.GetActivityRequest()),
    (
        "AppendStage",
        pb.AppendStageRequest(
            dataset="rows", from_position=9, weights=[pb.ComponentWeight(component="rows", weight="1")]
        ),
    ),
    (
        "GetBins",
        pb.GetBinsRequest(wire_version=WIRE_VERSION, dataset="rows", epoch=1, seed=2, positions=range(20), skip=SKIP),
    ),
    ("LocateSequences", pb.LocateSequencesRequest(dataset="rows", ids=range(40), topology=TOPOLOGY, skip=SKIP)),
    (
        "PackSequences",
        pb.PackSequencesRequest(
            lengths=range(1, 60),
            max_seq_len=64,
            num_bins_multiple_of=2,
            balance=pb.BALANCE_MICRO_STEP,
            separate_by=[1] * 59,
            groups=[2] * 59,
        ),
    ),
    (
        "StreamBins",
        pb.StreamBinsRequest(
            wire_version=WIRE_VERSION, dataset="rows", epoch=1, rank=1, worker=1, topology=TOPOLOGY, skip=SKIP
        ),
    ),
    (
        "PackStream",
        pb.PackStreamRequest(
            options=pb.PackStreamOptions(wire_version=WIRE_VERSION, max_seq_len=64, window_sequences=10)
        ),
    ),
    ("PackStream", pb.PackStreamRequest(sequences=pb.PackStreamSequences(ids=[1, 2], lengths=[3, 4]))),
]
NUMBERS = (0, 1, 127, 128, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


def varint(number):
    data = bytearray()
    while number > 127:
        data.append(number & 127 | 128)
        number >>= 7
    return bytes(data) + bytes([number])


def mutated(data, chance):
    """The bytes of a request with one to four of them changed, cut, doubled, or followed by a field of any number."""
    data = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del data[at : at + chance.randint(1, 8)]
            case 2:
                data[at:at] = data[at : at + chance.randint(1, 16)]
            case 3:
                data[at:at] = varint(chance.choice(NUMBERS))
            case 4:
                data += varint(chance.randint(1, 14) << 3) + varint(chance.choice(NUMBERS))
    return bytes(data)


def same(data):
    return data


def outcome(channel, method, data):
    """The status of a call."""
    try:
        if method == "StreamBins":
            call = channel.unary_stream(SERVICE + method, same, same)(data, timeout=CALL_SECONDS)
        elif method == "PackStream":
            call = channel.stream_stream(SERVICE + method, same, same)(iter([data] * 2), timeout=CALL_SECONDS)
        else:
            channel.unary_unary(SERVICE + method, same, same)(data, timeout=CALL_SECONDS)
            return grpc.StatusCode.OK
        for number, _ in enumerate(call, 1):
            if number == MOST_MESSAGES:
                call.cancel()
                break
        return grpc.StatusCode.OK
    except grpc.RpcError as error:
        return documented(error, (method, data))


def documented(error, call):
    """The status of a refusal, which says why in the form that the protocol promises."""
    assert error.code() in DOCUMENTED, (call, error)
    status, info = rpc_status.from_call(error), error_details_pb2.ErrorInfo()
    assert status is not None, (call, error)
    assert status.details[0].Unpack(info), call
    assert f"ERROR_REASON_{info.reason}" in pb.ErrorReason.keys()  # noqa: SIM118 (no mapping)
    return error.code()


def send_raw(target, chance):
    host, _, port = target.rpartition(":")
    data = bytes(chance.randrange(256) for _ in range(chance.randint(1, 400)))
    if chance.random() < 0.7:
        length, kind = chance.randrange(200), chance.randrange(12)
        head = (
            struct.pack(">I", length)[1:]
            + bytes([kind, chance.randrange(256)])
            + struct.pack(">I", chance.choice((0, 1, 3)))
        )
        data = PREFACE + bytes(9) + head + data  # settings, and a frame of any kind
        data = data.replace(PREFACE + bytes(9), PREFACE + b"\0\0\0\4\0\0\0\0\0")
    with socket.create_connection((host, int(port)), timeout=5) as raw:
        raw.sendall(data)
        raw.settimeout(0.02)
        with contextlib.suppress(OSError):
            raw.recv(1 << 16)


@pytest.mark.parametrize(
    ("num_requests", "num_connections"),
    [(600, 40), pytest.param(100_000, 2_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])],
)
def test_mutated_requests_and_raw_bytes_are_refused_and_break_nothing(
    corpus, make_server, memory_bytes, joined, num_requests, num_connections
):
    chance = random.Random(13)
    with make_server(corpus.root, "--metrics-listen", "127.0.0.1:0") as server, connect(server.target) as client:
        expected = joined(client.stream_bins("rows"))
        outcomes = Counter()
        with grpc.insecure_channel(server.target) as channel:
            for method, message in GOOD:
                data = message.SerializeToString()
                for _ in range(20):
                    outcome(channel, method, mutated(data, chance))  # what is allocated once is there by now
            before, files = memory_bytes(server.pid), len(os.listdir(f"/proc/{server.pid}/fd"))
            for _ in range(num_requests):
                method, message = chance.choice(GOOD)
                outcomes[outcome(channel, method, mutated(message.SerializeToString(), chance))] += 1
        for number in range(num_connections):
            send_raw(server.target if number % 4 else server.metrics_url.split("/")[2], chance)
        print(outcomes)
        assert outcomes[grpc.StatusCode.OK] > num_requests // 20
        assert outcomes[grpc.StatusCode.INVALID_ARGUMENT] > num_requests // 20
        assert joined(client.stream_bins("rows")) == expected
        assert memory_bytes(server.pid) < before + GROWTH_BYTES
        assert len(os.listdir(f"/proc/{server.pid}/fd")) < files + num_connections
        assert server.process.poll() is None
        assert "Traceback" not in server.log()
        server.stop()
