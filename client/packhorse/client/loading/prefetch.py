"""`DevicePrefetcher`: batches that are on the device before the trainer needs them.

Owns the thread that fetches ahead. Leaves the copies to `_device_copies`. The batches come from any iterable; the
DataLoader with its workers is in `loader`.
"""

import atexit
import threading
from collections.abc import Iterable, Iterator, Sized
from queue import Empty, SimpleQueue
from typing import Generic, NamedTuple, TypeVar

import torch

from packhorse.client.loading._device_copies import CopiedBatch, DeviceCopier, chosen_device
from packhorse.client.options import DEFAULT_DEPTH

_Batch = TypeVar("_Batch")

_LOOK_UP_SECONDS = 1.0
"""The longest wait for a batch before signals such as Ctrl-C are handled."""
_STOP_SECONDS = 5.0
"""How long `_Lookahead.stop` waits for a source that is making a batch."""


class DevicePrefetcher(Generic[_Batch]):
    """Iterates batches. It fetches the next ones, and copies them to the device, while the trainer uses the last one.

    One background thread takes batches from the source, so that `next` only pops a local queue, and a DataLoader's work
    for each batch (its queue, unpickling) overlaps with the model's. On CUDA the thread copies every tensor through
    pinned memory on its own CUDA stream. The trainer's current stream waits for the copies before it uses a batch, and
    the batch's memory is reused only after that stream has used it.

    Every tensor in nested dicts, lists and tuples goes to the device; other values (layouts, integers, cursors) do not
    change. On the CPU, batches do not change at all.

    Each iteration starts the source again, and ends an earlier iteration that was not finished. An error of the source
    is raised after the batches that it yielded before it.

    Example:
        >>> batches = [{"input_ids": torch.tensor([[7, 8]])}, {"input_ids": torch.tensor([[9, 0]])}]
        >>> [batch["input_ids"].tolist() for batch in DevicePrefetcher(batches, "cpu")]
        [[[7, 8]], [[9, 0]]]

    Args:
        batches: any iterable of batches, such as a DataLoader.
        device: where tensors go; None means the current CUDA device if there is one, else the CPU.
        depth: how many batches to fetch ahead, at least 1; they take GPU memory.

    Raises:
        ValueError: depth is less than 1.
    """

    def __init__(
        self, batches: Iterable[_Batch], device: torch.device | str | None = None, *, depth: int = DEFAULT_DEPTH
    ) -> None:
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}")
        self._batches = batches
        self._device = device
        self._depth = depth
        self._lookahead: _Lookahead[_Batch] | None = None

    def __len__(self) -> int:
        """Length of the source; a TypeError if it has none."""
        if not isinstance(self._batches, Sized):
            raise TypeError(f"{type(self._batches).__name__} has no length")
        return len(self._batches)

    def __repr__(self) -> str:
        device = "the current device" if self._device is None else self._device
        return f"<DevicePrefetcher to {device}, {self._depth} ahead: {self._batches!r}>"

    def __iter__(self) -> Iterator[_Batch]:
        """Yields the source's batches; fetching begins with the first `next`."""
        self.close()
        # `iter` is called here and not in the thread, because a DataLoader then forks its workers.
        lookahead = _Lookahead(iter(self._batches), DeviceCopier(chosen_device(self._device)), self._depth)
        self._lookahead = lookahead
        try:
            yield from lookahead.batches()
        finally:
            lookahead.stop()

    def close(self) -> None:
        """Ends an unfinished iteration; you may start another."""
        if self._lookahead is not None:
            self._lookahead.stop()
            # Without a limit: a DataLoader with persistent workers returns the same iterator each time, and two threads
            # must not read it.
            self._lookahead.join()
            self._lookahead = None


class _End(NamedTuple):
    """The last item of the queue, after the last batch."""

    error: BaseException | None
    """The source's error; None if it came to its end."""


class _Lookahead(Generic[_Batch]):
    """One thread that goes through one iterator, at most `depth` batches ahead of the trainer."""

    def __init__(self, source: Iterator[_Batch], copier: DeviceCopier, depth: int) -> None:
        self._source = source
        self._copier = copier
        self._free = threading.Semaphore(depth)
        self._ready: SimpleQueue[CopiedBatch[_Batch] | _End] = SimpleQueue()
        self._is_stopped = False
        # A daemon, so that a source which never answers cannot delay the end of the process. It is stopped at exit,
        # because a thread that is copying while the interpreter ends would crash.
        self._thread = threading.Thread(target=self._fetch, name="packhorse-prefetch", daemon=True)
        atexit.register(self.stop)
        self._thread.start()

    def batches(self) -> Iterator[_Batch]:
        """Yields the batches in order; at the end raises the source's error, if there is one."""
        while not isinstance(item := self._next(), _End):
            batch = self._copier.hand_out(item)
            self._free.release()  # only now: the thread would compete for the GIL while the trainer waits
            yield batch
        if item.error is not None:
            raise item.error

    def _next(self) -> "CopiedBatch[_Batch] | _End":
        """Waits for the next batch, in short waits: a Ctrl-C just before a long wait would not interrupt it."""
        while True:
            try:
                return self._ready.get(timeout=_LOOK_UP_SECONDS)
            except Empty:
                continue

    def stop(self) -> None:
        """Ends the iteration and its thread; waits at most _STOP_SECONDS for a source that is making a batch."""
        self._ready.put(_End(RuntimeError("this iteration was ended by another, or by close()")))
        self._is_stopped = True
        self._free.release()  # the thread may be waiting for room; it then sees that it is stopped
        atexit.unregister(self.stop)
        self.join(_STOP_SECONDS)

    def join(self, timeout_seconds: float | None = None) -> None:
        """Waits until the thread has ended, and so no longer uses the source."""
        if threading.current_thread() is not self._thread:  # the garbage collector may call this in the thread itself
            self._thread.join(timeout_seconds)

    def _fetch(self) -> None:
        """Runs in the thread: takes batches from the source while there is room, and puts an `_End` last."""
        error: BaseException | None = None
        try:
            with self._copier.in_thread():
                while self._free.acquire() and not self._is_stopped:
                    self._ready.put(self._copier.copy(next(self._source)))
        except StopIteration:
            pass
        except BaseException as raised:
            error = raised
        self._source = iter(())  # closes a stream now; at the end of the process, modules that it needs may be gone
        self._ready.put(_End(error))
