"""A call whose header is refused is ended at once, not when its error is forgotten."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from packhorse.client.errors import StreamInterruptedError
from packhorse.client.streams.stream import BinStream
from packhorse.formats.retry_policy import RetryPolicy
from packhorse.topology import Topology
from packhorse.v1 import packing_pb2 as pb


class _DamagedHeaders:
    """A transport whose streams begin with a header that does not match its checksum."""

    target = "damaged"
    has_answered = True

    def __init__(self) -> None:
        self.num_opened = self.num_open = 0

    def stream(self, method: Any, request: Any, seconds_left: Callable[[], float]) -> Iterator[pb.StreamBinsResponse]:
        assert self.num_open == 0, "the call before is still open"
        self.num_opened += 1
        self.num_open += 1
        try:
            yield pb.StreamBinsResponse(header=pb.StreamHeader(checksum=1, num_bins=1))
        finally:
            self.num_open -= 1


@pytest.mark.parametrize("deadline_seconds", [0, 1])
def test_a_call_with_a_refused_header_is_ended_though_its_error_is_held(deadline_seconds: float) -> None:
    transport: Any = _DamagedHeaders()
    stream = BinStream(
        transport, pb.StreamBinsRequest(dataset="d"), Topology(), RetryPolicy(deadline_seconds=deadline_seconds)
    )
    with pytest.raises(StreamInterruptedError, match="does not match its checksum") as raised:
        next(stream)
    assert (transport.num_opened > 1) == (deadline_seconds > 0)  # another attempt, if there is time
    assert transport.num_open == 0, raised.value
