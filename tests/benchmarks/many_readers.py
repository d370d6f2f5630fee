"""Readers of many streams in one process: each has a connection of its own, all open at once, read, and pause.

Owns the readers; run by the benchmarks of many streams as a process of its own, so that it and what it measures take
turns on no interpreter. Takes its arguments as JSON on stdin and prints what it saw as JSON.
"""

import asyncio
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import grpc

from packhorse.client.transport.requests import topology_message
from packhorse.topology import Topology
from packhorse.v1 import packing_pb2 as pb
from packhorse.v1 import packing_pb2_grpc
from packhorse.wire import WIRE_VERSION

_SETTLE_SECONDS = 3.0
"""After which a server whose readers pause takes no more memory."""

_CONNECT_SECONDS = 60.0

_WORLD_SIZE = 8
"""Fewer ranks than streams, so that no stream ends while it is measured: several readers are the same rank."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What the readers do."""

    address: str
    pid: int
    """Of the server."""
    dataset: str
    num_streams: int
    read_seconds: float
    """After all were opened; 0 where nothing comes after the first block, and no more is looked at."""
    ca: str | None = None
    """File of the CA; None for plain text."""
    token: str | None = None


@dataclass(kw_only=True)
class Seen:
    """What they saw."""

    num_connected: int = 0
    connect_seconds: float = 0.0
    first_block_seconds: list[float] = field(default_factory=list)
    """Of every stream, from the request to its first block."""
    server_seconds: float = 0.0
    """The server's processor time while they opened."""
    reader_seconds: float = 0.0
    """Their own."""
    num_ids: list[int] = field(default_factory=list)
    """Of every stream, while all of them read."""
    idle_kb: int = 0
    """The server's memory before anyone connected: RssAnon."""
    reading_kb: int = 0
    """The highest while they read."""
    paused_kb: int = 0
    """After they paused."""
    failures: list[str] = field(default_factory=list)


class _Readers:
    def __init__(self, task: Task) -> None:
        self._task = task
        self._is_reading = True
        self.seen = Seen()

    async def run(self) -> Seen:
        task, seen = self._task, self.seen
        seen.idle_kb = _anonymous_kb(task.pid)
        channels = [_channel(task) for _ in range(task.num_streams)]
        started = time.perf_counter()
        connected = await asyncio.gather(*map(_is_connected, channels))
        seen.num_connected, seen.connect_seconds = sum(connected), time.perf_counter() - started
        seen.num_ids = [0] * task.num_streams
        before = processor_seconds(task.pid), time.process_time()
        opened = await asyncio.gather(*(self._open(rank, channel) for rank, channel in enumerate(channels)))
        seen.server_seconds, seen.reader_seconds = (
            processor_seconds(task.pid) - before[0],
            time.process_time() - before[1],
        )
        calls = [(rank, call) for rank, call in enumerate(opened) if call is not None]
        if task.read_seconds:
            await self._read_on(calls)
        for _, call in calls:
            call.cancel()
        return seen

    async def _read_on(self, calls: list[tuple[int, Any]]) -> None:
        """Reads every stream as fast as it comes, and stops."""
        task, seen = self._task, self.seen
        reading = asyncio.gather(*(self._read(rank, call) for rank, call in calls))
        end = time.perf_counter() + task.read_seconds
        while time.perf_counter() < end:
            await asyncio.sleep(0.1)
            seen.reading_kb = max(seen.reading_kb, _anonymous_kb(task.pid))
        self._is_reading = False
        await reading
        await asyncio.sleep(_SETTLE_SECONDS)
        seen.paused_kb = _anonymous_kb(task.pid)

    async def _open(self, rank: int, channel: grpc.aio.Channel) -> Any:
        task = self._task
        metadata = [] if task.token is None else [("authorization", f"Bearer {task.token}")]
        started = time.perf_counter()
        try:
            call = packing_pb2_grpc.PackingServiceStub(channel).StreamBins(
                request(task.dataset, rank), metadata=metadata
            )
            for _ in ("header", "block"):
                await call.read()
        except grpc.RpcError as error:
            self.seen.failures.append(str(error.code()))
            return None
        self.seen.first_block_seconds.append(time.perf_counter() - started)
        return call

    async def _read(self, rank: int, call: Any) -> None:
        try:
            while self._is_reading and (message := await call.read()) is not grpc.aio.EOF:
                self.seen.num_ids[rank] += message.block.num_sequences
        except grpc.RpcError as error:
            self.seen.failures.append(str(error.code()))


def request(dataset: str, rank: int) -> pb.StreamBinsRequest:
    """Returns what a reader asks for."""
    return pb.StreamBinsRequest(
        dataset=dataset,
        seed=1,
        rank=rank % _WORLD_SIZE,
        topology=topology_message(Topology(world_size=_WORLD_SIZE, batch_size=8)),
        wire_version=WIRE_VERSION,
    )


def _channel(task: Task) -> grpc.aio.Channel:
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0))  # as packhorse's own clients
    if task.ca is None:
        return grpc.aio.insecure_channel(task.address, options)
    with open(task.ca, "rb") as file:
        return grpc.aio.secure_channel(task.address, grpc.ssl_channel_credentials(file.read()), options)


async def _is_connected(channel: grpc.aio.Channel) -> bool:
    try:
        await asyncio.wait_for(channel.channel_ready(), _CONNECT_SECONDS)
    except TimeoutError:
        return False
    return True


def _anonymous_kb(pid: int) -> int:
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))


def processor_seconds(pid: int) -> float:
    """Returns what a process has taken of all processors."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user and system


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(_Readers(Task(**json.load(sys.stdin))).run()))))
