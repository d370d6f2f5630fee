"""The same gRPC stack with nothing behind it: a grpc.aio server that yields messages which were made beforehand.

Owns the upper limit that streaming is compared with; run by benchmarks as a process of its own, with a file of messages
and, where they are to come once and not again and again, the word `once`.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from packhorse.v1 import packing_pb2 as pb
from packhorse.v1 import packing_pb2_grpc


def save(messages: list[pb.StreamBinsResponse], path: Path) -> None:
    """Writes messages to a file, each after its size."""
    with path.open("wb") as file:
        for message in messages:
            data = message.SerializeToString()
            file.write(len(data).to_bytes(8, "little") + data)


def load(path: Path) -> list[pb.StreamBinsResponse]:
    """Reads what `save` wrote."""
    data, at, messages = path.read_bytes(), 0, []
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little")
        messages.append(pb.StreamBinsResponse.FromString(data[at + 8 : at + 8 + size]))
        at += 8 + size
    return messages


class _Recorded(packing_pb2_grpc.PackingServiceServicer):
    """Yields the recorded messages, then the second half of them (blocks of full size) again and again, or nothing."""

    def __init__(self, messages: list[pb.StreamBinsResponse], once: bool) -> None:
        self._messages = messages
        self._once = once

    async def StreamBins(self, request: pb.StreamBinsRequest, context: Any) -> AsyncIterator[pb.StreamBinsResponse]:  # noqa: N802
        for message in self._messages:
            yield message
        if self._once:
            await asyncio.Event().wait()
        while True:
            for message in self._messages[len(self._messages) // 2 :]:
                yield message


async def _serve(path: Path, once: bool) -> None:
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    packing_pb2_grpc.add_PackingServiceServicer_to_server(_Recorded(load(path), once), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"listening on 127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), once="once" in sys.argv[2:]))
