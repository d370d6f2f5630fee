"""Batches that are on the device before the trainer needs them.

Owns the thread that fetches ahead, and the copies to a GPU while it computes. The batches come from any iterable; its
workers are in `loader`.
"""

import atexit
import threading
from collections.abc import Iterable, Iterator, Sized
from contextlib import nullcontext
from queue import Empty, SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from packhorse.client.batches.packed_batch import map_tensors

_Batch = TypeVar("_Batch")

_LOOK_UP_SECONDS = 1.0
_STOP_SECONDS = 5.0  # how long a source may take over a batch that nobody wants any more


class DevicePrefetcher(Generic[_Batch]):
    """Iterates batches. It fetches the next ones and copies them to the device while the trainer works on the last one.

    One background thread takes batches from the source, so that `next` only pops a local queue. A DataLoader's work for
    each batch (its queue, unpickling) overlaps with the model's. On CUDA the thread copies every tensor through pinned
    memory on its own stream. The trainer's current stream waits for the copies of a batch before it uses them, and the
    batch's memory is reused only after that stream is done with it.

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

    def __init__(self, batches: Iterable[_Batch], device: torch.device | str | None = None, *, depth: int = 2) -> None:
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}")
        self._batches = batches
        self._device = device
        self._depth = depth
        self._lookahead: _Lookahead[_Batch] | None = None

    def __len__(self) -> int:
        """Length of the source; a TypeError where it has none."""
        if not isinstance(self._batches, Sized):
            raise TypeError(f"{type(self._batches).__name__} has no length")
        return len(self._batches)

    def __repr__(self) -> str:
        device = "the current device" if self._device is None else self._device
        return f"<DevicePrefetcher to {device}, {self._depth} ahead: {self._batches!r}>"

    def __iter__(self) -> Iterator[_Batch]:
        """Yields the source's batches; fetching begins with the first `next`."""
        self.close()
        # The iterator is made here and not in the thread: a DataLoader forks its workers then.
        lookahead = _Lookahead(iter(self._batches), _Copier(chosen_device(self._device)), self._depth)
        self._lookahead = lookahead
        try:
            yield from lookahead.batches()
        finally:
            lookahead.stop()

    def close(self) -> None:
        """Ends an unfinished iteration; you may start another."""
        if self._lookahead is not None:
            self._lookahead.stop()
            self._lookahead.join()  # one source, one thread: a DataLoader with persistent workers is its own iterator
            self._lookahead = None


class _Copied(NamedTuple):
    """A batch on the device, and when it is complete."""

    batch: Any
    event: torch.cuda.Event | None


class _End(NamedTuple):
    """Nothing more comes."""

    error: BaseException | None


class _Copier:
    """Copies batches to one device; to a GPU while it computes for the trainer."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def in_thread(self) -> Any:
        """Context of the fetching thread: whatever its source does on the GPU is in order with the copies."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def copy(self, batch: Any) -> _Copied:
        """Begins the copies of one batch; in the fetching thread."""
        if self._device.type == "cpu":
            return _Copied(batch, None)
        moved = map_tensors(self._copy_tensor, batch)
        return _Copied(moved, None if self._stream is None else self._stream.record_event())

    def hand_out(self, copied: _Copied) -> Any:
        """Makes the trainer's current stream wait for a batch, and keeps its memory until that stream is done."""
        if copied.event is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(copied.event)

            def record(tensor: torch.Tensor) -> torch.Tensor:
                tensor.record_stream(stream)
                return tensor

            map_tensors(record, copied.batch)
        return copied.batch

    def _copy_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        # Pinned memory comes from PyTorch's cache, which gives it out again only when the copies from it are done.
        if self._stream is not None and tensor.device.type == "cpu":
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=self._stream is not None)


class _Lookahead(Generic[_Batch]):
    """One thread that goes through one iterator, at most `depth` batches ahead of its trainer."""

    def __init__(self, source: Iterator[_Batch], copier: _Copier, depth: int) -> None:
        self._source = source
        self._copier = copier
        self._free = threading.Semaphore(depth)
        self._ready: SimpleQueue[_Copied | _End] = SimpleQueue()
        self._is_stopped = False
        # A daemon, so that a source which never answers cannot hold up the end of the process, and stopped before that
        # end, which a thread amid a copy does not survive.
        self._thread = threading.Thread(target=self._fetch, name="packhorse-prefetch", daemon=True)
        atexit.register(self.stop)
        self._thread.start()

    def batches(self) -> Iterator[_Batch]:
        """Yields batches as they come ready."""
        while not isinstance(item := self._next(), _End):
            batch = self._copier.hand_out(item)
            self._free.release()  # not before: the thread would contend for the interpreter while its trainer waits
            yield batch
        if item.error is not None:
            raise item.error

    def _next(self) -> "_Copied | _End":
        """Waits for the next batch, and looks up now and then: Ctrl-C just before a wait does not end it."""
        while True:
            try:
                return self._ready.get(timeout=_LOOK_UP_SECONDS)
            except Empty:
                continue

    def stop(self) -> None:
        """Ends the thread, and waits a while for a source that is amid a batch."""
        self._ready.put(_End(RuntimeError("this iteration was ended by another, or by close()")))
        self._is_stopped = True
        self._free.release()
        atexit.unregister(self.stop)
        self.join(_STOP_SECONDS)

    def join(self, timeout_seconds: float | None = None) -> None:
        """Waits until the source is let go of."""
        if threading.current_thread() is not self._thread:  # the garbage collector runs in any thread
            self._thread.join(timeout_seconds)

    def _fetch(self) -> None:
        error: BaseException | None = None
        try:
            with self._copier.in_thread():
                while self._free.acquire() and not self._is_stopped:
                    self._ready.put(self._copier.copy(next(self._source)))
        except StopIteration:
            pass
        except BaseException as raised:
            error = raised
        self._source = iter(())  # a stream ends now, and not when the process ends, amid modules that are gone
        self._ready.put(_End(error))


def chosen_device(device: torch.device | str | None) -> torch.device:
    """Returns the device meant at this moment; None is the current CUDA device where there is one, else the CPU."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = torch.device(device)
    if chosen.type == "cuda" and chosen.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return chosen
