"""A server in which something goes wrong: `Faults` names what, and `apply` changes the process that it is called in.

Owns every fault that a test has a server suffer. `python tests/faulty_server.py MODULE …` runs a module, such as
`packhorse.cli`, with the faults of its environment; the processes that a server starts have them too.
"""

import asyncio
import json
import os
import resource
import runpy
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

_VARIABLE = "TEST_FAULTS"
"""What hands faults to a process, as JSON."""

_POLL_SECONDS = 0.02


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What a server suffers; each at its default leaves the server as it is."""

    block_bytes: int | None = None
    """What later blocks of a stream grow to."""
    steps_per_block: int | None = None
    """Steps of later blocks, whatever they weigh."""
    block_seconds: float = 0.0
    """How much longer each block takes, so that a stream lasts and does not lie in buffers whole."""
    blocks_stuck_while: str | None = None
    """No block is made while this file exists."""
    kernels_missing: bool = False
    """No kernel is there, as if another process compiled them and did not come to an end."""
    probe_seconds: float | None = None
    """How long making blocks may stand still before health turns, and how often that is looked at."""
    requests_at_once: int | None = None
    """Requests that are received at the same time."""
    receive_seconds: float | None = None
    """How long one request may take to come."""
    receive_memory_bytes: int | None = None
    """What requests that are decoded may take together; one that finds too little is refused at once."""
    descriptors: tuple[int, int] | None = None
    """Files that the process may open, and how far it may raise that."""
    metrics_silence_seconds: float | None = None
    """How long a connection to the metrics port may say nothing."""
    metrics_connection_seconds: float | None = None
    """How long a connection to the metrics port may last."""
    metrics_connections: int | None = None
    """Connections to the metrics port at the same time."""

    def environment(self) -> dict[str, str]:
        """Variables by which `from_environment` finds the same in another process."""
        return {_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> "Faults":
        """The faults that this process was started with."""
        fields = json.loads(os.environ.get(_VARIABLE, "{}"))
        if fields.get("descriptors"):
            fields["descriptors"] = tuple(fields["descriptors"])
        return cls(**fields)


SLOW_SMALL_BLOCKS = Faults(block_bytes=512, block_seconds=0.02)
"""Streams last, and none lies in buffers."""


def apply(faults: Faults) -> None:
    """Lets this process suffer them. Imports no more than they need: a process of several counts in its own way."""
    _blocks(faults)
    _receiving(faults)
    _metrics_port(faults)
    if faults.descriptors is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, faults.descriptors)
    if faults.probe_seconds is not None:
        from packhorse.server.app import health

        health.PROBE_SECONDS = health.PROBE_EVERY_SECONDS = faults.probe_seconds
    if faults.kernels_missing:
        _no_kernels()


def _blocks(faults: Faults) -> None:
    from packhorse.server.methods import open_stream
    from packhorse.server.methods.open_stream import OpenStream
    from packhorse.v1 import packing_pb2 as pb

    if faults.block_bytes is not None:
        open_stream.BLOCK_BYTES = open_stream.LEAST_BLOCK_BYTES = faults.block_bytes
    if faults.steps_per_block is not None:
        num_steps = faults.steps_per_block
        OpenStream._steps_per_block = lambda self, num_bytes: num_steps  # type: ignore[method-assign]
    make, stuck = OpenStream.make, faults.blocks_stuck_while

    def make_slowly(self: OpenStream, steps: range) -> pb.StreamBinsResponse | None:
        time.sleep(faults.block_seconds)
        while stuck is not None and os.path.exists(stuck):
            time.sleep(_POLL_SECONDS)
        return make(self, steps)

    OpenStream.make = make_slowly  # type: ignore[method-assign]


def _receiving(faults: Faults) -> None:
    from packhorse.server.service import followed_call

    if faults.requests_at_once is not None:
        followed_call.MOST_AT_ONCE = faults.requests_at_once
    if faults.receive_seconds is not None:
        followed_call.RECEIVE_SECONDS = faults.receive_seconds
    if faults.receive_memory_bytes is not None:
        followed_call.REQUEST_BYTES, followed_call.REQUEST_WAIT_SECONDS = faults.receive_memory_bytes, 0.0


def _metrics_port(faults: Faults) -> None:
    from packhorse.server.app import metrics_port

    if faults.metrics_silence_seconds is not None:
        metrics_port._Handler.timeout = faults.metrics_silence_seconds
    if faults.metrics_connection_seconds is not None:
        metrics_port.CONNECTION_SECONDS = faults.metrics_connection_seconds
    if faults.metrics_connections is not None:
        metrics_port.MOST_CONNECTIONS = faults.metrics_connections


def _no_kernels() -> None:
    from packhorse.compiling import ahead
    from packhorse.storage import LockHeldError

    def locked(folder: Path) -> NoReturn:
        raise LockHeldError(folder, "process 1")

    ahead._load_if_cached = lambda load_all: False
    ahead.compiling_alone = locked  # type: ignore[attr-defined]


def _hand_on() -> None:
    """Lets a server of several processes start each of them through this file."""
    start = asyncio.create_subprocess_exec

    async def start_faulty(program: str, option: str, *module: str, **options: Any) -> asyncio.subprocess.Process:
        assert option == "-m"
        return await start(program, __file__, *module, **options)

    asyncio.create_subprocess_exec = start_faulty  # type: ignore[assignment]


def main() -> None:
    """Runs the module that the command line names, with its arguments, as `python -m` would."""
    sys.path.pop(0)  # this file's folder
    sys.argv.pop(0)
    apply(Faults.from_environment())
    _hand_on()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
