"""Accidents that are no answers of the service: whatever they look like, calls and streams go on behind them."""

import threading

import pytest
from tests.chaos import http2
from tests.chaos.proxy import Proxy

from packhorse.client import PackhorseError, RetryPolicy, StreamInterruptedError, connect
from packhorse.client.errors import AccessDeniedError, NotImplementedByServerError, RequestTooLargeError

pytestmark = pytest.mark.realtime

QUICK = RetryPolicy(deadline_seconds=30, connect_seconds=30, first_delay_seconds=0.01, most_delay_seconds=0.1)

ACCIDENTS = (
    {f"RST_STREAM {code}": http2.reset(code) for code in (0, 1, 2, 3, 5, 7, 8, 9, 10, 11, 13, 99)}
    | {f"HTTP {status}": http2.http_status(status) for status in (400, 429, 500, 502, 503)}
    | {f"status {code}": http2.grpc_status(code) for code in (1, 2, 4, 8, 9, 10, 11, 13, 14, 15, 77)}
    | {
        "no message": http2.body(b""),
        "half a message": http2.body(http2.message(bytes(1000))[:500]),
        "a message that is none": http2.body(http2.message(b"\xff" * 30)),
        "a message that is cut off": http2.body(http2.message(bytes(1000))[:500], ends=False),
        "a compressed message": http2.body(b"\1" + http2.message(b"\xff" * 30)[1:]),
        "text": http2.raw(b"HTTP/1.1 200 OK\r\n\r\nhello"),
        "a frame of no kind": http2.raw(b"\xff" * 500),
        "nothing": http2.raw(b""),
    }
)


@pytest.fixture
def proxy(running_server):
    with Proxy(running_server.target) as proxy:
        yield proxy


@pytest.mark.parametrize("kind", ["unary", "bins", "stream", "pack"])
@pytest.mark.parametrize("name", ACCIDENTS)
def test_every_kind_of_call_goes_on_behind_an_accident(proxy, client, joined, kind, name):
    def use(one):
        return {
            "unary": lambda: one.get_dataset("rows"),
            "bins": lambda: joined([one.get_bins("rows", positions=[3, 1])]),
            "stream": lambda: joined(one.stream_bins("few")),
            "pack": lambda: packed_by_stream(one),
        }[kind]()

    proxy.faults = [ACCIDENTS[name]] * 2
    with connect(proxy.target, retry=QUICK) as one:
        assert use(one) == use(client)
    assert proxy.faults == []


def packed_by_stream(client):
    with client.pack_stream(100) as stream:
        bins = stream.send([0, 1], [60, 40]) + stream.flush()
    return {i: n for ids, lengths in bins for i, n in zip(ids.tolist(), lengths.tolist(), strict=True)}


def test_a_stream_goes_on_behind_every_accident_at_once(proxy, client, joined):
    """Connections are cut where a stream is open, and each of the next meets another accident."""
    whole = joined(client.stream_bins("rows"))
    proxy.cut_after_bytes = list(range(3000, 20_000, 2500))
    with connect(proxy.target, retry=QUICK) as one:
        stream = one.stream_bins("rows")
        first = next(stream)
        proxy.faults = list(ACCIDENTS.values())
        assert joined([first, *stream]) == whole
    assert proxy.faults == []


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (http2.grpc_status(12), NotImplementedByServerError),
        (http2.http_status(404), NotImplementedByServerError),
        (http2.grpc_status(16), AccessDeniedError),
        (http2.http_status(401), AccessDeniedError),
        (http2.grpc_status(7), AccessDeniedError),
        (http2.grpc_status(8, "SERVER: Received message larger than max (9 vs. 4)"), RequestTooLargeError),
    ],
)
def test_what_can_never_work_is_raised_at_once(proxy, fault, kind):
    for use in (lambda one: one.list_datasets(), lambda one: next(one.stream_bins("rows")), packed_by_stream):
        proxy.faults = [fault]
        with connect(proxy.target, retry=QUICK) as one, pytest.raises(kind):
            use(one)
        assert proxy.num_connections
    assert proxy.num_connections == 3


def test_a_stream_that_never_opens_says_so(proxy):
    proxy.faults = [http2.http_status(503)] * 1000
    policy = RetryPolicy(deadline_seconds=1, first_delay_seconds=0.01, most_delay_seconds=0.1)
    with connect(proxy.target, retry=policy) as one, pytest.raises(StreamInterruptedError, match="could not be opened"):
        next(one.stream_bins("rows"))


def test_a_client_that_is_closed_during_a_call_does_not_connect_again(proxy, wait_until):
    proxy.is_silent = True
    caught = []

    def read():
        try:
            next(one.stream_bins("rows"))
        except Exception as error:
            caught.append(error)

    one = connect(proxy.target)
    reading = threading.Thread(target=read)
    reading.start()
    wait_until(lambda: proxy.num_connections)
    one.close()
    reading.join(10)
    assert not reading.is_alive()
    assert type(caught[0]) is PackhorseError
    assert "closed" in str(caught[0])
    assert proxy.num_connections == 1
