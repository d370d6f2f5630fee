"""A stack trace is the architecture: a request passes at most four layers before a line about bins."""

import asyncio
import traceback
from contextlib import suppress
from pathlib import Path

import grpc

import packhorse.server
from packhorse.client.transport.requests import topology_message
from packhorse.epoch import Assignment
from packhorse.server.datasets.lazy_catalog import LazyCatalog
from packhorse.server.datasets.mixtures import Mixtures
from packhorse.server.methods.backend import Backend
from packhorse.server.service.interceptor import Interceptor
from packhorse.server.service.lanes import Lanes
from packhorse.server.service.servicer import PackingServicer
from packhorse.server.service.stream_limit import StreamLimit
from packhorse.server.watching.call_metrics import CallMetrics
from packhorse.server.watching.metrics import Metrics
from packhorse.topology import Topology
from packhorse.v1 import packing_pb2 as pb
from packhorse.v1 import packing_pb2_grpc
from packhorse.wire import WIRE_VERSION

MOST_LAYERS = 4
HOME = Path(packhorse.server.__file__).parent
"""Found by the import, never by the path's words: a clone may lie in a folder of any name."""


def test_a_stream_passes_four_layers_before_a_line_about_bins(corpus, monkeypatch):
    layers = []

    def note():
        for frame in traceback.extract_stack():
            path = Path(frame.filename)
            if path.is_relative_to(HOME) and (module := path.relative_to(HOME).as_posix()) not in layers:
                layers.append(module)

    opening, bins = PackingServicer._open_in_lane, Assignment.bins
    monkeypatch.setattr(PackingServicer, "_open_in_lane", lambda *arguments: note() or opening(*arguments))
    monkeypatch.setattr(Assignment, "bins", lambda *arguments: note() or bins(*arguments))

    async def stream():
        metrics, lanes = Metrics(list), Lanes.for_this_machine()
        lanes.measure(metrics)
        interceptor = Interceptor([CallMetrics(metrics)], None, lambda _error: None)
        server = grpc.aio.server(interceptors=(interceptor,))
        backend = Backend(Mixtures(LazyCatalog(corpus.root, set())))
        servicer = PackingServicer(backend, metrics, lanes, StreamLimit(1))
        packing_pb2_grpc.add_PackingServiceServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        request = pb.StreamBinsRequest(
            dataset="rows", wire_version=WIRE_VERSION, topology=topology_message(Topology(batch_size=2))
        )
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = packing_pb2_grpc.PackingServiceStub(channel).StreamBins(request, timeout=60)
            with suppress(asyncio.CancelledError):
                async for message in call:
                    if message.HasField("block"):
                        call.cancel()
        await server.stop(None)
        lanes.close()

    asyncio.run(stream())
    assert len(layers) <= MOST_LAYERS, layers
    assert layers == ["service/followed_call.py", "service/servicer.py", "service/lanes.py", "methods/open_stream.py"]
