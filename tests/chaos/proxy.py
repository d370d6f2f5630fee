"""A TCP proxy that misbehaves as networks do: it cuts, delays, alters and swallows what passes through it.

    with Proxy(server.target) as proxy, connect(proxy.target) as client:
        proxy.silence()  # nothing passes any more, and nobody is told

Owns connections and bytes; what a broken HTTP/2 peer would answer stands in `http2`.
"""

import asyncio
import threading
from contextlib import suppress

from tests.chaos.http2 import answer_by_hand


class Proxy:
    """Listens on this machine and passes bytes on to `upstream`, as the attributes say at that moment.

    Args:
        upstream: host:port.
        listen: (host, port) to listen on, 0 for a free port.
    """

    def __init__(self, upstream, listen=("127.0.0.1", 0)):
        self.upstream = upstream
        self._address = listen
        self.target = None
        self.num_connections = 0
        self.delay_seconds = 0.0
        """Before every piece that passes."""
        self.is_silent = False
        """Whether pieces are swallowed; connections stay open, new ones are accepted and lead nowhere."""
        self.cut_after_bytes = []
        """For the next connections: how many bytes of answers pass before it is cut."""
        self.flips = []
        """For the next connections: (offset in the answers, mask) of a byte to alter."""
        self.request_flips = []
        """The same for the requests."""
        self.faults = []
        """For the next connections: what `http2` answers in the server's place."""
        self._writers = set()
        self._silenced = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self):
        self._thread.start()
        host, port = self._run(self._listen())
        self.target = f"{host}:{port}"
        return self

    def __exit__(self, *_):
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def silence(self):
        """Swallows what passes on every connection that is open now, as a host that vanished; new ones work."""
        self._silenced |= self._writers

    def cut(self):
        """Closes every connection."""
        self._run(self._cut())

    def _run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _listen(self):
        self._server = await asyncio.start_server(self._serve, *self._address)
        return self._server.sockets[0].getsockname()

    async def _cut(self):
        for writer in list(self._writers):
            writer.transport.abort()

    async def _close(self):
        self._server.close()
        await self._cut()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        self.num_connections += 1
        self._writers.add(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            if self.faults:
                await answer_by_hand(self.faults.pop(0), reader, writer)
            else:
                await self._forward(reader, writer)
        self._writers.discard(writer)
        writer.transport.abort()

    async def _forward(self, reader, writer):
        host, port = self.upstream.rsplit(":", 1)
        cut_after = self.cut_after_bytes.pop(0) if self.cut_after_bytes else None
        flip = self.flips.pop(0) if self.flips else None
        request_flip = self.request_flips.pop(0) if self.request_flips else None
        upstream_reader, upstream_writer = await asyncio.open_connection(host, port)
        self._writers.add(upstream_writer)
        pumps = [
            asyncio.ensure_future(self._pump(reader, upstream_writer, None, request_flip)),
            asyncio.ensure_future(self._pump(upstream_reader, writer, cut_after, flip)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            self._writers.discard(upstream_writer)
            upstream_writer.transport.abort()

    async def _pump(self, reader, writer, cut_after, flip):
        passed = 0
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                if self.delay_seconds:
                    await asyncio.sleep(self.delay_seconds)
                if self.is_silent or writer in self._silenced:
                    continue
                if flip is not None and 0 <= flip[0] - passed < len(data):
                    data = bytearray(data)
                    data[flip[0] - passed] ^= flip[1]
                passed += len(data)
                if cut_after is not None and passed >= cut_after:
                    writer.write(data[: len(data) - (passed - cut_after)])
                    await writer.drain()
                    return
                writer.write(data)
                await writer.drain()
