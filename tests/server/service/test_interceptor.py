"""Requests on their way in: those that never end, those of strangers, and what they take from others."""

import asyncio
import socket
import struct
import time

import grpc
import pytest
from tests.chaos.http2 import ACK, DATA, END_HEADERS, FRAME_HEADER_BYTES, HEADERS, SETTINGS, frame, literals
from tests.faulty_server import Faults

from packhorse.client import RetryPolicy, connect
from packhorse.server.access.bearer_tokens import Grant, hash_of, new_token
from packhorse.server.service.followed_call import (
    MOST_AT_ONCE,
    SMALL_REQUEST_BYTES,
    AllCalls,
    Arriving,
    FollowedCall,
)
from packhorse.server.watching.calls import Call
from packhorse.v1 import packing_pb2 as pb

SERVICE = "/packhorse.v1.PackingService/"
WINDOW_UPDATE, INITIAL_WINDOW_SIZE = 8, 4
MEBIBYTE = 1 << 20
CALLS, AT_ONCE = 24, 2
QUICKLY = RetryPolicy(deadline_seconds=20)


class Unfinished:
    """Requests of one connection that lack their last byte, sent by hand as far as the server lets them.

    Args:
        target: the server's address.
        method: of the service.
        num_bytes: of each message.
    """

    def __init__(self, target, method, num_bytes=4 * MEBIBYTE - 16):
        host, port = target.rsplit(":", 1)
        self.sent_bytes = 0
        self.statuses = []
        self._socket = socket.create_connection((host, int(port)))
        self._socket.settimeout(1.5)
        self._left, self._windows = {}, {0: 65_535}
        self._initial = 65_535
        self._received = b""
        self._num_bytes = num_bytes
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))
        self._begin = literals(
            (":method", "POST"),
            (":scheme", "http"),
            (":path", SERVICE + method),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close()

    def begin(self, num_calls):
        for number in range(num_calls):
            stream = 2 * number + 1
            self._windows[stream] = self._initial
            self._left[stream] = struct.pack(">BI", 0, self._num_bytes) + bytes(self._num_bytes - 1)
            self._socket.sendall(frame(HEADERS, END_HEADERS, stream, self._begin))

    def send(self):
        """Sends until the server lets no more come for a while."""
        while True:
            for stream in list(self._left):
                while size := min(16_384, len(self._left[stream]), self._windows[stream], self._windows[0]):
                    part, self._left[stream] = self._left[stream][:size], self._left[stream][size:]
                    self._socket.sendall(frame(DATA, 0, stream, part))
                    self._windows[stream] -= size
                    self._windows[0] -= size
                    self.sent_bytes += size
            if not self._read():
                return

    def _read(self):
        """Reads what there is; whether something came."""
        try:
            data = self._socket.recv(1 << 16)
        except TimeoutError:
            return False
        self._received += data
        while len(self._received) >= FRAME_HEADER_BYTES:
            end = FRAME_HEADER_BYTES + int.from_bytes(self._received[:3], "big")
            if len(self._received) < end:
                break
            kind, flags = self._received[3:5]
            self._take(kind, flags, int.from_bytes(self._received[5:9], "big"), self._received[9:end])
            self._received = self._received[end:]
        return bool(data)

    def _take(self, kind, flags, stream, payload):
        if kind == SETTINGS and not flags & ACK:
            for setting, value in struct.iter_unpack(">HI", payload):
                if setting == INITIAL_WINDOW_SIZE:
                    grown, self._initial = value - self._initial, value
                    self._windows = {each: size + (grown if each else 0) for each, size in self._windows.items()}
            self._socket.sendall(frame(SETTINGS, ACK, 0))
        elif kind == WINDOW_UPDATE:
            self._windows[stream] += int.from_bytes(payload, "big")
        elif kind == HEADERS:
            self.statuses.append(payload)
            self._left.pop(stream, None)


@pytest.fixture
def impatient(corpus, make_server):
    """A server that receives few requests at once, and waits half a second for one."""
    with make_server(corpus.root, faults=Faults(requests_at_once=AT_ONCE, receive_seconds=0.5)) as server:
        yield server


@pytest.mark.parametrize("method", ["PackSequences", "StreamBins"])
@pytest.mark.realtime
def test_requests_that_never_end_are_let_in_a_few_at_a_time_and_end_without_a_trace(impatient, method):
    with Unfinished(impatient.target, method) as calls:
        calls.begin(CALLS)
        calls.send()
        assert calls.sent_bytes > 4 * MEBIBYTE
        num_refused = len(calls.statuses)
        assert num_refused >= CALLS - 2 * AT_ONCE  # what gRPC itself reads may stay
        assert all(b"did not come within 0.5 seconds; try again" in status for status in calls.statuses)
        with connect(impatient.target, retry=QUICKLY) as client:
            assert len(client.pack_sequences([1, 2, 3], 6)) == 1
            assert sum(len(block.ids) for block in client.stream_bins("rows")) == 2000
    assert "Traceback" not in impatient.log()


@pytest.mark.realtime
def test_what_nobody_reads_is_not_let_in(corpus, make_server):
    with make_server(corpus.root) as server, Unfinished(server.target, "PackSequences") as calls:
        calls.begin(80)
        calls.send()
        num_let_in = 2 * MOST_AT_ONCE + len(calls.statuses)  # the place of one that was refused is another's
        assert calls.sent_bytes < num_let_in * 4 * MEBIBYTE + 80 * (64 << 10)


@pytest.mark.parametrize("method", ["GetDataset", "StreamBins"])
@pytest.mark.realtime
def test_strangers_are_refused_before_their_request_has_come(corpus, make_server, tmp_path, method):
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{Grant('somebody', hash_of(new_token()))}\n")
    with make_server(corpus.root, "--token-file", tokens) as server, Unfinished(server.target, method) as calls:
        calls.begin(3)
        calls.send()
        assert len(calls.statuses) == 3
        assert all(b"requires a token" in status for status in calls.statuses)


def test_large_requests_at_once_are_answered_or_told_to_come_back(corpus, make_server):
    """A request of a mebibyte takes nine, and here nine is all there are."""
    fits = pb.PackSequencesRequest(lengths=[1] * (MEBIBYTE - 64) + [2], max_seq_len=4).SerializeToString()
    exceeds = fits + bytes(2 * MEBIBYTE)
    few_bytes = Faults(receive_memory_bytes=9 * MEBIBYTE)
    with make_server(corpus.root, faults=few_bytes) as server, grpc.insecure_channel(server.target) as channel:
        call = channel.unary_unary(SERVICE + "PackSequences")
        with pytest.raises(grpc.RpcError) as caught:
            call(exceeds, timeout=20)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "other requests hold the memory" in caught.value.details()
        with pytest.raises(grpc.RpcError, match="send at most 1000000"):  # it was read
            call(fits, timeout=20)


@pytest.mark.realtime
def test_large_requests_are_decoded_with_pauses_between():
    """Decoding keeps the event loop: a few requests of 300,000 ranges would leave streams a tenth of their rate."""
    began = []

    def decode(data):
        began.append(time.perf_counter())
        while time.perf_counter() < began[-1] + 0.02:  # keeps the loop
            pass
        return data

    async def run():
        all_calls = AllCalls([], lambda _error: None, writes_to_end=True)
        handler = grpc.unary_unary_rpc_method_handler(lambda *_: None, request_deserializer=decode)
        followed = FollowedCall(all_calls, Call("other"), handler, Arriving())
        large = [followed._decode_in_turn(bytes(SMALL_REQUEST_BYTES + 1), None) for _ in range(3)]
        tasks = [asyncio.ensure_future(each) for each in large]
        await asyncio.sleep(0)
        assert await followed._decode_in_turn(b"small", None) == b"small", "small ones wait for nothing"
        assert len(began) == 2
        await asyncio.gather(*tasks)
        assert len(began) == 4
        first, _, *others = began
        assert others[0] - first >= 3 * 0.02

    asyncio.run(run())
