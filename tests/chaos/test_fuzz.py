"""Requests of no client: altered messages, mutated and raw bytes. Documented statuses come back, and nothing breaks."""

import contextlib
import copy
import os
import random
import shutil
import socket
import struct
from collections import Counter

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from tests.flat_words import prepare

from packhorse.client import connect
from packhorse.server.service.status import STATUS_OF_REASON
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import WIRE_VERSION

SERVICE = "/packhorse.v1.PackingService/"
DOCUMENTED = {*STATUS_OF_REASON.values()} - {grpc.StatusCode.INTERNAL}
CALL_SECONDS = 60
MOST_MESSAGES = 4
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
OF_A_DATASET = {"wire_version": WIRE_VERSION, "epoch": 1, "seed": 2, "skip": SKIP}
DATASETS = ("rows", "grouped")
LENGTHS = range(1, 60)
GROUPS = [length % 31 for length in LENGTHS]
"""Of `LENGTHS`, at most 89 tokens each, which do not stand one after the other."""
GOOD = {
    "ListDatasets": ("ListDatasets", pb.ListDatasetsRequest()),
    "GetActivity": ("GetActivity", pb.GetActivityRequest()),
    **{f"GetDataset, {name}": ("GetDataset", pb.GetDatasetRequest(name=name)) for name in DATASETS},
    **{
        f"GetBins, {name}": ("GetBins", pb.GetBinsRequest(dataset=name, positions=range(20), **OF_A_DATASET))
        for name in DATASETS
    },
    **{
        f"LocateSequences, {name}": (
            "LocateSequences",
            pb.LocateSequencesRequest(dataset=name, ids=range(40), topology=TOPOLOGY, skip=SKIP),
        )
        for name in DATASETS
    },
    **{
        f"StreamBins, {name}": (
            "StreamBins",
            pb.StreamBinsRequest(dataset=name, rank=1, worker=1, topology=TOPOLOGY, **OF_A_DATASET),
        )
        for name in DATASETS
    },
    **{
        f"PackSequences, {len(groups)} of groups": (
            "PackSequences",
            pb.PackSequencesRequest(
                lengths=LENGTHS,
                max_seq_len=90,
                num_bins_multiple_of=2,
                balance=pb.BALANCE_MICRO_STEP,
                separate_by=[length % 31 % 2 for length in LENGTHS],
                groups=groups,
            ),
        )
        for groups in ([], GROUPS)
    },
    **{
        f"PackStream, {len(groups)} of groups": (
            "PackStream",
            pb.PackStreamRequest(
                options=pb.PackStreamOptions(wire_version=WIRE_VERSION, max_seq_len=90, lookahead_sequences=10)
            ),
            pb.PackStreamRequest(sequences=pb.PackStreamSequences(ids=LENGTHS, lengths=LENGTHS, groups=groups)),
            pb.PackStreamRequest(sequences=pb.PackStreamSequences(ids=[7], lengths=[8], groups=groups[:1])),
            pb.PackStreamRequest(flush=pb.PackStreamFlush()),
        )
        for groups in ([], GROUPS)
    },
}
"""Requests that are answered: a method and what is sent, several messages to a PackStream."""
UNSERVED = {
    "AppendStage": (
        "AppendStage",
        pb.AppendStageRequest(
            dataset="rows", from_position=9, weights=[pb.ComponentWeight(component="rows", weight="1")]
        ),
    ),
}
"""Refused by a server without tokens, whatever it says."""
NUMBERS = (0, 1, 127, 128, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)

RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
}
"""The least and the greatest number of a field's type."""


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


def altered(message, chance):
    """A well-formed message that says something else in one to three of its fields, at any depth."""
    message = copy.deepcopy(message)
    for _ in range(chance.randint(1, 3)):
        alter(message, chance)
    return message


def alter(message, chance):
    """Changes one field of a message."""
    if not message.DESCRIPTOR.fields:
        return
    field = chance.choice(message.DESCRIPTOR.fields)
    value = getattr(message, field.name)
    if field.message_type is not None and field.is_repeated:
        alter(chance.choice([*value, value.add()]), chance)
    elif field.message_type is not None:
        alter(value, chance)
    elif field.is_repeated:
        values = [*value]
        at = chance.randrange(len(values) + 1)
        match chance.randrange(4):
            case 0:
                del values[at:]
            case 1:
                values[at:at] = values[at:] or [any_value(field, chance)]
            case 2:
                values[at : at + 1] = [any_value(field, chance)]
            case 3:
                chance.shuffle(values)
        value[:] = values
    else:
        setattr(message, field.name, any_value(field, chance))


def any_value(field, chance):
    """A value of a field's type: mostly a small one, else one at an edge."""
    if field.cpp_type == field.CPPTYPE_STRING:
        return chance.choice(["", *DATASETS, "best-fit", "../rows", "ü" * 99])
    if field.cpp_type == field.CPPTYPE_BOOL:
        return chance.random() < 0.5
    least, most = RANGES[field.cpp_type]
    edges = [number for number in NUMBERS if number <= most]
    return chance.choice([chance.randrange(90), chance.randrange(90), chance.choice(edges), least])


def changed(messages, chance):
    """The bytes of messages, of which one is altered or mutated."""
    every = [message.SerializeToString() for message in messages]
    which = chance.randrange(len(every))
    if chance.random() < 0.5:
        every[which] = altered(messages[which], chance).SerializeToString()
    else:
        every[which] = mutated(every[which], chance)
    return every


def outcome(channel, method, messages):
    """The status of a call."""
    try:
        if method == "StreamBins":
            call = channel.unary_stream(SERVICE + method, same, same)(*messages, timeout=CALL_SECONDS)
        elif method == "PackStream":
            call = channel.stream_stream(SERVICE + method, same, same)(iter(messages), timeout=CALL_SECONDS)
        else:
            channel.unary_unary(SERVICE + method, same, same)(*messages, timeout=CALL_SECONDS)
            return grpc.StatusCode.OK
        for number, _ in enumerate(call, 1):
            if number == MOST_MESSAGES:
                call.cancel()
                break
        return grpc.StatusCode.OK
    except grpc.RpcError as error:
        return documented(error, (method, messages))


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


@pytest.fixture(scope="module")
def root(corpus, tmp_path_factory):
    """`rows`, and its sequences in groups of one to five: `grouped`."""
    root = tmp_path_factory.mktemp("fuzzed")
    shutil.copytree(corpus.root / "rows", root / "rows")
    lengths = np.array([len(tokens) for tokens in corpus.sequences])
    sizes = np.random.default_rng(5).integers(1, 6, len(lengths))
    groups = np.repeat(np.arange(len(sizes)), sizes)[: len(lengths)]
    prepare(lengths=lengths, groups=groups, max_seq_len=1280, output=root / "grouped", progress=False)
    return root


@pytest.mark.parametrize(
    ("num_requests", "num_connections"),
    [(900, 40), pytest.param(100_000, 2_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])],
)
def test_altered_requests_and_raw_bytes_are_refused_and_break_nothing(
    root, make_server, memory_bytes, joined, num_requests, num_connections
):
    chance = random.Random(13)
    known = GOOD | UNSERVED
    with make_server(root, "--metrics-listen", "127.0.0.1:0") as server, connect(server.target) as client:
        expected = [joined(client.stream_bins(name)) for name in DATASETS]
        outcomes = Counter()
        with grpc.insecure_channel(server.target) as channel:
            for name, (method, *messages) in GOOD.items():
                as_it_is = [message.SerializeToString() for message in messages]
                assert outcome(channel, method, as_it_is) is grpc.StatusCode.OK, name
            for method, *messages in known.values():
                for _ in range(20):
                    outcome(channel, method, changed(messages, chance))  # what is allocated once is there by now
            before, files = memory_bytes(server.pid), len(os.listdir(f"/proc/{server.pid}/fd"))
            for _ in range(num_requests):
                name = chance.choice([*known])
                method, *messages = known[name]
                outcomes[name, outcome(channel, method, changed(messages, chance))] += 1
        for number in range(num_connections):
            send_raw(server.target if number % 4 else server.metrics_url.split("/")[2], chance)
        print(outcomes)
        assert all(outcomes[name, grpc.StatusCode.OK] for name in GOOD)
        assert sum(outcomes[name, grpc.StatusCode.INVALID_ARGUMENT] for name in GOOD) > num_requests // 20
        assert [joined(client.stream_bins(name)) for name in DATASETS] == expected
        assert memory_bytes(server.pid) < before + GROWTH_BYTES
        assert len(os.listdir(f"/proc/{server.pid}/fd")) < files + num_connections
        assert server.process.poll() is None
        assert "Traceback" not in server.log()
        server.stop()
