"""An HTTP proxy as companies have them: it leads every host of a CONNECT to one server, or refuses."""

import asyncio

from tests.chaos.proxy import Proxy


class HttpProxy(Proxy):
    """Answers CONNECT.

    Args:
        upstream: host:port that every host stands for.

    Attributes:
        status: of the answers; 200 connects.
        asked: (host:port, headers) of each CONNECT.
    """

    def __init__(self, upstream):
        super().__init__(upstream)
        self.status = 200
        self.asked = []

    async def _forward(self, reader, writer):
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        self.asked.append((lines[0].split()[1], dict(line.lower().split(": ", 1) for line in lines[1:] if line)))
        writer.write(f"HTTP/1.1 {self.status} Answer\r\n\r\n".encode())
        await writer.drain()
        if self.status == 200:
            await super()._forward(reader, writer)
        else:
            await asyncio.sleep(0.05)  # the answer is read before the connection's end is noticed
