"""A store that fails on demand: fsspec's local files behind faulty:// URLs, in this process."""

import threading
from collections.abc import Callable
from typing import Any

from fsspec import register_implementation
from fsspec.implementations.local import LocalFileSystem

Fault = Callable[[bytes], bytes]
"""Makes another answer of the right one, or raises, or takes its time."""


class FaultyFileSystem(LocalFileSystem):
    """Local files; what goes wrong is one fault for each read, in order, until none is left."""

    protocol = "faulty"
    cachable = False
    faults: list[Fault] = []  # noqa: RUF012 - of all instances, since every process opens its own
    reads: list[tuple[str, int, int]] = []  # noqa: RUF012
    lock = threading.Lock()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("faulty://")

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        data = super().cat_file(path, start=start, end=end, **options)
        with self.lock:
            self.reads.append((path, start, end))
            fault = self.faults.pop(0) if self.faults else None
        return data if fault is None else fault(data)


register_implementation("faulty", FaultyFileSystem, clobber=True)
