"""Bytes that change on the way: what is delivered is what was sent, or a clear error."""

import random

import numpy as np
import pytest
from tests.chaos.proxy import Proxy

from packhorse.client import PackhorseError, RetryPolicy, StreamInterruptedError, connect
from packhorse.client import api as api_module
from packhorse.client.errors import DamagedAnswerError
from packhorse.client.streams import blocks as blocks_module
from packhorse.client.streams.pack_stream import PackStream
from packhorse.client.transport import grpc_channels as transport
from packhorse.client.transport import retries
from packhorse.client.transport.methods import STREAM_BINS
from packhorse.server.methods import open_stream
from packhorse.topology import Topology
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import KEPT_TEMPLATES, bins_checksum, block_context, header_checksum

QUICK = RetryPolicy(deadline_seconds=5, first_delay_seconds=0.01, most_delay_seconds=0.1)


@pytest.fixture(autouse=True)
def short_stalls(monkeypatch):
    """A length that grew on the way makes its reader wait for what never comes."""
    monkeypatch.setattr(transport, "STALL_SECONDS", 2.0)
    monkeypatch.setattr(transport, "PACK_SECONDS", 2.0)


@pytest.fixture(scope="module")
def own_server(corpus, make_server):
    """A server that requests with altered bytes cannot spoil for other tests."""
    with make_server(corpus.root) as server:
        yield server
        assert server.process.poll() is None


ANSWERS, REQUESTS = ("flips", (0, 6000)), ("request_flips", (200, 500))
"""Which bytes change. The first 200 of a request are left out: they hold its path, and gRPC's own server for asyncio
stops listening for good when a path is not UTF-8."""


def flips(seed, count, least, most):
    """(offset, mask) of one byte each: some among the first frames, where the headers are."""
    chance = random.Random(seed)
    offsets = [chance.randrange(least, min(most, 400) if i % 3 == 0 else most) for i in range(count)]
    return [(offset, 1 << chance.randrange(8)) for offset in offsets]


@pytest.mark.parametrize(("direction", "span"), [ANSWERS, REQUESTS], ids=["answers", "requests"])
@pytest.mark.parametrize("name", ["named", "truncated", "rows"])
@pytest.mark.realtime
def test_a_stream_survives_a_byte_that_changes(own_server, client, joined, direction, span, name):
    """In equal lengths another id in place of one would be seen nowhere but in the checksum."""
    topology = Topology(world_size=2, batch_size=2)
    whole = joined(client.stream_bins(name, topology=topology))
    num_whole = 0
    for flip in flips(name, 20, *span):
        with Proxy(own_server.target) as proxy, connect(proxy.target, retry=QUICK) as one:
            setattr(proxy, direction, [flip])
            try:
                came = joined(one.stream_bins(name, topology=topology))
            except PackhorseError:
                continue  # a request for something else was answered, with a clear error
            assert came == whole, flip
            num_whole += 1
    assert num_whole >= 15


@pytest.mark.parametrize(("direction", "span"), [ANSWERS, REQUESTS], ids=["answers", "requests"])
@pytest.mark.realtime
def test_a_pack_stream_survives_a_byte_that_changes(own_server, direction, span):
    lengths = np.random.default_rng(5).integers(16, 513, 600)
    num_whole = 0
    for flip in flips(8, 24, span[0], 3000):
        with Proxy(own_server.target) as proxy, connect(proxy.target, retry=QUICK) as one:
            setattr(proxy, direction, [flip])
            bins = []
            try:
                with one.pack_stream(512, lookahead_sequences=50) as stream:
                    for start in range(0, 600, 100):
                        bins += stream.send(range(start, start + 100), lengths[start : start + 100])
                    bins += stream.flush()
            except PackhorseError:
                continue
            came = sorted((i, n) for ids, sizes in bins for i, n in zip(ids.tolist(), sizes.tolist(), strict=True))
            assert came == list(enumerate(lengths.tolist())), flip
            num_whole += 1
    assert num_whole >= 12


def u32(*numbers):
    return np.array(numbers, "<u4").tobytes()


@pytest.mark.parametrize(
    ("change", "id_type"),
    [
        ({}, pb.ID_TYPE_UNSPECIFIED),
        ({}, 99),
        ({"ids": b"12345"}, pb.ID_TYPE_UINT32),
        ({"ids": bytes(12)}, pb.ID_TYPE_UINT32),
        ({"templates": u32(0)}, pb.ID_TYPE_UINT32),
        ({"templates": u32(0, 0, 0)}, pb.ID_TYPE_UINT32),
        ({"templates": u32(0, 1)}, pb.ID_TYPE_UINT32),
        ({"templates": u32(0, 2**32 - 1)}, pb.ID_TYPE_UINT32),
        ({"templates": bytes(7)}, pb.ID_TYPE_UINT32),
        ({"defined_templates": b""}, pb.ID_TYPE_UINT32),
        ({"defined_templates": u32(1)}, pb.ID_TYPE_UINT32),
        ({"defined_templates": u32(KEPT_TEMPLATES)}, pb.ID_TYPE_UINT32),
        ({"defined_templates": u32(0, 0), "defined_sizes": u32(1, 0)}, pb.ID_TYPE_UINT32),
        ({"templates": u32(0, KEPT_TEMPLATES + 1), "defined_templates": u32(0, KEPT_TEMPLATES + 1),
          "defined_sizes": u32(1, 1), "defined_lengths": u32(5, 6)}, pb.ID_TYPE_UINT32),
        ({"templates": u32(1, KEPT_TEMPLATES), "defined_templates": u32(0, KEPT_TEMPLATES),
          "defined_sizes": u32(1, 1), "defined_lengths": u32(5, 6)}, pb.ID_TYPE_UINT32),
        ({"defined_sizes": u32(2)}, pb.ID_TYPE_UINT32),
        ({"defined_sizes": u32(2), "defined_lengths": u32(5, 6)}, pb.ID_TYPE_UINT32),
        ({"defined_lengths": b""}, pb.ID_TYPE_UINT32),
        ({"defined_lengths": bytes(3)}, pb.ID_TYPE_UINT32),
        ({"position_offsets": u32(0)}, pb.ID_TYPE_UINT32),
        ({"first_tokens": bytes(12)}, pb.ID_TYPE_UINT32),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_are_damage(change, id_type):
    good = {"ids": bytes(8), "templates": u32(0, 0), "defined_templates": u32(0)}
    good |= {"defined_sizes": u32(1), "defined_lengths": u32(5)}
    bins = pb.Bins(**(good | change))
    bins.checksum = bins_checksum(bins)
    with pytest.raises(DamagedAnswerError):
        blocks_module.decode_bins(bins, id_type)
    bins = pb.Bins(**good)
    bins.checksum = bins_checksum(bins)
    assert len(blocks_module.decode_bins(bins, pb.ID_TYPE_UINT32)) == 2


@pytest.mark.parametrize("change", [{"first_step": 1}, {"num_steps": 0}, {"num_steps": 2}, {"num_steps": 10**9}])
def test_a_block_of_other_steps_than_those_that_come_next_is_damage(embedded, joined, change, monkeypatch):
    """The checksum fits what the block says of itself, as from a server that miscounts."""
    backend = embedded._transport._backend
    whole = joined(embedded.stream_bins("few"))
    asked = []

    class Miscounting(type(embedded._transport)):
        def __init__(self):
            self.target = "miscounting"

        def stream(self, method, request, timeout_seconds):
            assert method is STREAM_BINS
            asked.append(request.first_step)
            for message in backend.stream_bins(request):
                if message.HasField("header"):
                    header = message.header
                elif len(asked) < 3:
                    for name, value in change.items():
                        setattr(message.block, name, value)
                    context = block_context(header.checksum, message.block)
                    message.block.bins.checksum = bins_checksum(message.block.bins, context)
                yield message

    one = api_module.Client(Miscounting(), QUICK)
    assert joined(one.stream_bins("few")) == whole
    assert asked == [0, 0, 0]


class OverAndOver:
    """A transport whose every stream is the embedded one as `changed` gives it."""

    target = "over and over"
    has_answered = True

    def __init__(self, transport, changed):
        self.transport, self.changed, self.num_streams = transport, changed, 0

    def stream(self, method, requests, seconds_left):
        self.num_streams += 1
        self.request = requests
        return self.changed(self.transport.stream(method, requests))


def third_is_damaged(messages):
    for number, message in enumerate(messages):
        if number == 2:
            message.block.bins.checksum ^= 1
        yield message


def test_a_stream_of_which_every_third_message_is_damaged_ends(embedded, monkeypatch):
    """Each reopened stream brings a block, so that no deadline would ever pass."""
    monkeypatch.setattr(open_stream.OpenStream, "_steps_per_block", lambda *_: 1)
    damaging = OverAndOver(embedded._transport, third_is_damaged)
    came = []
    blocks = api_module.Client(damaging, QUICK).stream_bins("rows")
    with pytest.raises(StreamInterruptedError, match="more than 20 answers were damaged") as caught:
        came.extend(map(len, blocks))
    assert sum(came) == caught.value.position == damaging.num_streams


def test_a_stream_that_is_damaged_now_and_then_goes_on(embedded, joined, monkeypatch):
    monkeypatch.setattr(open_stream.OpenStream, "_steps_per_block", lambda *_: 1)
    monkeypatch.setattr(retries, "SOUND_ANSWERS", 5)
    monkeypatch.setattr(retries, "MOST_DAMAGED", 2)

    def hardly(messages):
        for number, message in enumerate(messages):
            if number == 10:
                message.block.bins.checksum ^= 1
            yield message

    one = OverAndOver(embedded._transport, hardly)
    assert joined(api_module.Client(one, QUICK).stream_bins("rows")) == joined(embedded.stream_bins("rows"))
    assert one.num_streams > 20


def test_a_stream_of_empty_blocks_ends(embedded):
    def empty(messages):
        header = next(messages).header
        header.num_steps = header.num_bins = 1 << 40
        header.checksum = header_checksum(one.request, header)
        yield pb.StreamBinsResponse(header=header)
        for step in range(1 << 40):
            block = pb.StreamBlock(first_step=step, num_steps=1)
            block.bins.templates = block.bins.defined_templates = bytes(4)
            block.bins.defined_sizes = bytes(4)
            block.bins.checksum = bins_checksum(block.bins, block_context(header.checksum, block))
            yield pb.StreamBinsResponse(block=block)

    one = OverAndOver(embedded._transport, empty)
    policy = RetryPolicy(deadline_seconds=1, most_delay_seconds=0.1)
    with pytest.raises(StreamInterruptedError, match="sent no sequence for steps 0 to 0"):
        list(api_module.Client(one, policy).stream_bins("few"))


@pytest.mark.parametrize("what", ["damaged", "empty"])
def test_a_pack_stream_whose_flush_never_comes_ends(embedded, what):
    """What is sent again is answered each time, and brings nothing new."""

    def faulty(messages):
        for number, message in enumerate(messages):
            if number == 2 and what == "damaged":
                message.bins.checksum ^= 1
            elif number == 2:
                message.CopyFrom(pb.PackStreamResponse(num_sequences_held=1))
                message.bins.checksum = bins_checksum(message.bins)
            yield message

    options = pb.PackStreamOptions(max_seq_len=100, lookahead_sequences=2)
    policy = RetryPolicy(deadline_seconds=1, most_delay_seconds=0.1)
    with PackStream(OverAndOver(embedded._transport, faulty), options, policy) as stream:
        stream.send([1], [60])
        with pytest.raises(DamagedAnswerError, match="bytes changed" if what == "damaged" else "kept 1 sequences"):
            stream.flush()
        assert stream.num_held == 1


class Altering:
    """A transport that alters the first answers of another before they arrive."""

    target = "altering"
    has_answered = True

    def __init__(self, transport, alter, times=2):
        self.transport, self.alter, self.left = transport, alter, times

    def _altered(self, answer):
        if self.left:
            self.left -= 1
            self.alter(answer)
        return answer

    def answer(self, method, request, timeout_seconds):
        return self._altered(self.transport.answer(method, request))

    def stream(self, method, requests, timeout_seconds):
        for response in self.transport.stream(method, requests):
            if len(response.bins.ids):
                self._altered(response)
                response.bins.checksum = bins_checksum(response.bins)
            yield response


@pytest.mark.parametrize(
    "alter",
    [
        lambda answer: setattr(answer.locations[0], "id", 8),
        lambda answer: answer.locations.pop(),
        lambda answer: answer.locations.add(id=7),
        lambda answer: answer.locations.sort(key=lambda location: location.id),
        lambda answer: setattr(answer.locations[0], "found", False),
        lambda answer: setattr(answer.locations[0], "position", answer.locations[0].position ^ 1),
        lambda answer: setattr(
            answer.locations[0].stream_location, "rank", 1 - answer.locations[0].stream_location.rank
        ),
        lambda answer: answer.locations[0].ClearField("stream_location"),
        lambda answer: setattr(answer, "digest", answer.digest[::-1]),
    ],
)
def test_locations_that_change_on_the_way_are_asked_for_again(embedded, alter):
    altering = Altering(embedded._transport, alter)
    ids = [7, 5, 5, 123_456_789, 6]
    topology = Topology(world_size=2)
    came = api_module.Client(altering, QUICK).locate("rows", ids=ids, topology=topology)
    assert came == embedded.locate("rows", ids=ids, topology=topology)
    assert [location.id for location in came] == ids
    assert altering.left == 0


@pytest.mark.parametrize(
    "alter",
    [
        lambda request: setattr(request, "dataset", "named"),
        lambda request: setattr(request, "epoch", 3),
        lambda request: setattr(request, "seed", 8),
        lambda request: request.ids.reverse(),
        lambda request: request.ClearField("topology"),
        lambda request: setattr(request.topology, "world_size", 3),
        lambda request: setattr(request.topology, "start_position", 1),
        lambda request: request.skip.add(first=0, end=1),
    ],
)
def test_a_request_to_locate_that_changes_on_the_way_is_noticed(embedded, alter):
    """The server answers what it received; the client expects an answer to what it sent."""
    num_altered = 0

    class AlteringRequests(Altering):
        def answer(self, method, request, timeout_seconds):
            nonlocal num_altered
            if num_altered < 2:
                num_altered += 1
                sent, request = request, type(request)()
                request.CopyFrom(sent)
                alter(request)
            return self.transport.answer(method, request)

    one = api_module.Client(AlteringRequests(embedded._transport, None), QUICK)
    where = {"epoch": 2, "seed": 7, "ids": [5, 6], "topology": Topology(world_size=2)}
    assert one.locate("rows", **where) == embedded.locate("rows", **where)
    assert num_altered == 2


@pytest.mark.parametrize(
    "alter",
    [
        lambda answer: setattr(answer, "indices", answer.indices[:-4]),
        lambda answer: setattr(answer, "indices", answer.indices[:-1]),
        lambda answer: setattr(answer, "indices", answer.indices[:-4] + answer.indices[:4]),
        lambda answer: setattr(answer, "bin_ends", answer.bin_ends[:-4]),
        lambda answer: setattr(answer, "bin_ends", answer.bin_ends[:-3]),
        lambda answer: setattr(answer, "bin_ends", b""),
        lambda answer: setattr(answer, "bin_ends", answer.bin_ends[:4] + answer.bin_ends),
        lambda answer: setattr(answer, "bin_ends", answer.bin_ends[-4:]),  # all in one bin, over its capacity
    ],
)
def test_packed_indices_are_a_packing_of_what_was_sent(embedded, alter):
    altering = Altering(embedded._transport, alter)
    lengths = [60, 40, 70, 30, 100]
    bins = api_module.Client(altering, QUICK).pack_sequences(lengths, 100)
    assert sorted(i for bin_ in bins for i in bin_.tolist()) == list(range(5))
    assert all(sum(lengths[i] for i in bin_.tolist()) <= 100 for bin_ in bins)
    assert altering.left == 0


@pytest.mark.parametrize(
    "alter",
    [
        lambda answer: setattr(answer.bins, "defined_lengths", b"\1\0\0\0" + answer.bins.defined_lengths[4:]),
        lambda answer: setattr(answer.bins, "ids", b"\x63" + answer.bins.ids[1:]),
        lambda answer: setattr(answer.bins, "ids", answer.bins.ids[8:16] * (len(answer.bins.ids) // 8)),
        lambda answer: setattr(answer, "num_sequences_held", answer.num_sequences_held + 1),
        lambda answer: setattr(answer, "num_sequences_held", answer.num_sequences_held - 1),
    ],
)
def test_a_pack_stream_takes_only_what_it_sent(embedded, alter):
    altering = Altering(embedded._transport, alter)
    options = pb.PackStreamOptions(max_seq_len=100, lookahead_sequences=2)
    bins = []
    with PackStream(altering, options, QUICK) as stream:
        for number in range(20):
            bins += stream.send([number], [30 + number])
        bins += stream.flush()
        assert stream.num_held == 0
    came = sorted((i, n) for ids, sizes in bins for i, n in zip(ids.tolist(), sizes.tolist(), strict=True))
    assert came == [(number, 30 + number) for number in range(20)]
    assert altering.left == 0
