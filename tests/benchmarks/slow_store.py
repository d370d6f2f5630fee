"""An HTTP server of one folder that answers ranges as slowly as an object store: python slow_store.py FOLDER PORT."""

import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LATENCY_SECONDS = 0.02
BYTES_PER_SECOND = 100e6
_PIECE_BYTES = 1 << 18


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD."""

    protocol_version = "HTTP/1.1"
    folder = Path()

    def do_HEAD(self) -> None:
        """Tells a file's size."""
        self._answer(with_body=False)

    def do_GET(self) -> None:
        """Gives a file, or a range of it."""
        self._answer(with_body=True)

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def _answer(self, *, with_body: bool) -> None:
        time.sleep(LATENCY_SECONDS)
        path = self.folder / self.path.lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        size = path.stat().st_size
        first, end, asked = 0, size, self.headers.get("Range")
        if asked:
            begin, _, last = asked.removeprefix("bytes=").partition("-")
            first, end = int(begin), min(int(last) + 1, size) if last else size
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(end - first))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{size}"')
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{end - 1}/{size}")
        self.end_headers()
        if not with_body:
            return
        began = time.perf_counter()
        with path.open("rb") as file:
            file.seek(first)
            for at in range(first, end, _PIECE_BYTES):
                self.wfile.write(file.read(min(_PIECE_BYTES, end - at)))
                ahead = (at + _PIECE_BYTES - first) / BYTES_PER_SECOND - (time.perf_counter() - began)
                if ahead > 0:
                    time.sleep(ahead)


if __name__ == "__main__":
    Handler.folder = Path(sys.argv[1])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
