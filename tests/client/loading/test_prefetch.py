"""DevicePrefetcher: the same batches in the same order, fetched ahead, and nothing left behind however it ends."""

import gc
import sys
import threading
import time
from collections import UserDict, namedtuple
from itertools import count

import pytest
import torch
from tests import scripts

from packhorse.client import DevicePrefetcher, PackedBatch


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "packhorse-prefetch"]


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    if threads():
        gc.collect()  # of all that earlier tests imported: not where nothing is left
    assert threads() == []


class Source:
    """Yields 0, 1, 2, …; counts how far it was asked, and fails where told."""

    def __init__(self, num_batches, error_at=None):
        self.num_batches, self.error_at = num_batches, error_at
        self.taken = self.iterations = 0
        self.threads = []

    def __len__(self):
        return self.num_batches

    def __iter__(self):
        self.iterations += 1
        return self.numbers()

    def numbers(self):
        for number in range(self.num_batches):
            self.taken = number + 1
            self.threads.append(threading.current_thread().name)
            if number == self.error_at:
                raise KeyError(number)
            yield number


@pytest.mark.parametrize("depth", [1, 2, 7])
def test_yields_everything_in_order_epoch_after_epoch(depth):
    source = Source(50)
    prefetcher = DevicePrefetcher(source, "cpu", depth=depth)
    assert len(prefetcher) == 50
    for epoch in (1, 2, 3):
        assert list(prefetcher) == list(range(50))
        assert source.iterations == epoch
    assert set(source.threads) == {"packhorse-prefetch"}


def test_an_empty_source():
    assert list(DevicePrefetcher([], "cpu")) == []


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.realtime
def test_fetches_depth_batches_ahead_and_no_more(depth, wait_until):
    source = Source(100)
    iterator = iter(DevicePrefetcher(source, "cpu", depth=depth))
    assert source.iterations == 0  # nothing is begun before it is asked for
    for consumed in range(1, 20):
        assert next(iterator) == consumed - 1
        wait_until(lambda: source.taken == consumed + depth)  # noqa: B023
        time.sleep(0.001)
        assert source.taken == consumed + depth
    iterator.close()
    assert threads() == []


def test_an_error_comes_after_the_batches_before_it():
    source = Source(10, error_at=4)
    prefetcher = DevicePrefetcher(source, "cpu", depth=3)
    came = []
    with pytest.raises(KeyError) as caught:
        came.extend(prefetcher)
    assert (came, caught.value.args) == ([0, 1, 2, 3], (4,))
    assert caught.traceback[-1].name == "numbers"  # the source's own frame, not only ours
    source.error_at = None
    assert list(prefetcher) == list(range(10))


def test_an_error_of_iter_is_raised_at_once():
    class Broken:
        def __iter__(self):
            raise OSError("no source")

    with pytest.raises(OSError, match="no source"):
        next(iter(DevicePrefetcher(Broken(), "cpu")))


def test_an_exit_inside_the_source_is_no_silent_end():
    def leaves():
        yield 1
        sys.exit("in the source")

    with pytest.raises(SystemExit, match="in the source"):
        list(DevicePrefetcher(leaves(), "cpu"))


def test_an_iteration_may_be_left_and_another_begun():
    source = Source(1000)
    prefetcher = DevicePrefetcher(source, "cpu")
    for _ in range(20):
        for number in prefetcher:
            if number == 5:
                break
        assert threads() == []
    assert list(prefetcher) == list(range(1000))


def test_the_error_of_a_training_step_leaves_nothing_behind():
    def train():
        for number in DevicePrefetcher(Source(1000), "cpu"):
            if number == 3:
                raise ArithmeticError

    with pytest.raises(ArithmeticError) as caught:
        train()
    del caught


def test_a_second_iteration_ends_the_first():
    """Iterators of a source may share state, as those of a DataLoader with persistent workers do."""
    prefetcher = DevicePrefetcher(Source(100), "cpu", depth=2)
    first = iter(prefetcher)
    assert next(first) == 0
    assert list(prefetcher) == list(range(100))
    with pytest.raises(RuntimeError, match="ended by another"):
        list(first)


def test_close_ends_an_iteration_and_may_be_repeated():
    prefetcher = DevicePrefetcher(count(), "cpu")
    iterator = iter(prefetcher)
    assert next(iterator) == 0
    prefetcher.close()
    prefetcher.close()
    assert threads() == []
    with pytest.raises(RuntimeError, match=r"close\(\)"):
        list(iterator)


def test_a_source_that_does_not_answer_is_not_waited_for_long(monkeypatch):
    monkeypatch.setattr("packhorse.client.loading.prefetch._STOP_SECONDS", 0.05)
    answer = threading.Event()

    def slow():
        yield 1
        answer.wait()

    iterator = iter(DevicePrefetcher(slow(), "cpu"))
    assert next(iterator) == 1
    iterator.close()
    assert len(threads()) == 1  # amid the source
    answer.set()
    threads()[0].join(20)


def test_batches_are_let_go_of():
    class Batch:
        def __init__(self):
            alive.append(1)

        def __del__(self):
            alive.pop()

    alive = []
    iterator = iter(DevicePrefetcher((Batch() for _ in range(100)), "cpu", depth=2))
    for _ in range(50):
        batch = next(iterator)
        assert len(alive) <= 4  # the one in hand, two ahead, and the one that takes its place
        del batch
    iterator.close()


def test_what_has_no_length_says_so():
    with pytest.raises(TypeError, match="no length"):
        len(DevicePrefetcher(iter([]), "cpu"))
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        DevicePrefetcher([], "cpu", depth=0)


def test_on_the_cpu_batches_are_untouched():
    batches = [{"a": torch.zeros(2)}, [torch.ones(1)], object()]
    assert all(a is b for a, b in zip(DevicePrefetcher(batches, "cpu"), batches, strict=True))


Pair = namedtuple("Pair", ["left", "right"])


def nested():
    cursor = {"position": 3, "digest": "d"}
    tensors = [torch.arange(n + 1) for n in range(6)]
    batch = PackedBatch(
        input_ids=tensors[0],
        cursor=cursor,
        max_seqlen=7,
        inner=[tensors[1], (tensors[2], "text"), Pair(tensors[3], None)],
        users=UserDict(a=tensors[4], b=5),
        empty=(),
        last={"x": {"y": tensors[5]}},
    )
    return batch, tensors


def moved_tensors(batch):
    inner = batch["inner"]
    return [batch["input_ids"], inner[0], inner[1][0], inner[2].left, batch["users"]["a"], batch["last"]["x"]["y"]]


def assert_moved(batch, original, device):
    assert all(tensor.device.type == device for tensor in moved_tensors(batch))
    assert type(batch) is PackedBatch
    assert list(batch) == list(original)
    assert batch["cursor"] == original["cursor"]
    assert (batch["max_seqlen"], batch["inner"][1][1], batch["users"]["b"], batch["empty"]) == (7, "text", 5, ())
    assert type(batch["inner"][2]) is Pair
    assert type(batch["users"]) is UserDict


def test_every_tensor_of_a_batch_is_moved_and_the_rest_stays():
    batch, tensors = nested()
    (moved,) = DevicePrefetcher([batch], "meta")
    assert_moved(moved, batch, "meta")
    assert all(a is b for a, b in zip(moved_tensors(batch), tensors, strict=True))  # the source's batch is unchanged


AT_EXIT = """
import itertools, sys, threading, time
from packhorse.client import DevicePrefetcher, PackedBatch
def source():
    yield 1
    if {blocks}:
        threading.Event().wait()
    yield from itertools.count()
import packhorse.client.loading.prefetch
packhorse.client.loading.prefetch._STOP_SECONDS = 0.2
iterator = iter(DevicePrefetcher(source(), "cpu"))
next(iterator)
{end}
"""


@pytest.mark.parametrize("blocks", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.parametrize(("end", "status"), [("", 0), ("raise KeyboardInterrupt", 130), ("sys.exit(3)", 3)])
def test_a_process_ends_whatever_is_being_fetched(blocks, end, status):
    code = AT_EXIT.format(blocks=blocks, end=end)
    done = scripts.run(code, timeout=60)
    assert done.returncode in (status, -2 if status == 130 else status), done.stderr
    assert "Fatal" not in done.stderr


INTERRUPTED = """
import os, signal, threading, time
import packhorse.client.loading.prefetch
from packhorse.client import DevicePrefetcher, PackedBatch
packhorse.client.loading.prefetch._STOP_SECONDS = 0.2
def source():
    yield 1
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait()
try:
    for _ in DevicePrefetcher(source(), "cpu", depth=1):
        pass
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_consumer_that_waits_can_be_interrupted():
    done = scripts.run(INTERRUPTED, timeout=60)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


@pytest.mark.gpu
def test_every_tensor_reaches_the_gpu():
    batch, tensors = nested()
    (moved,) = DevicePrefetcher([batch])
    assert_moved(moved, batch, "cuda")
    for there, here in zip(moved_tensors(moved), tensors, strict=True):
        assert torch.equal(there.cpu(), here)


@pytest.mark.gpu
@pytest.mark.parametrize("own_stream", [False, True])
@pytest.mark.parametrize("pinned", [False, True])
def test_no_batch_is_read_before_it_is_there_or_reused_before_it_was_read(own_stream, pinned):
    """The consumer queues slow work and drops each batch at once: memory reused too early would change its sums."""
    size = 1 << 20

    def source():
        for number in range(60):
            tensor = torch.full((size,), number, dtype=torch.int64)
            yield {"tensor": tensor.pin_memory() if pinned else tensor}

    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    sums = []
    with torch.cuda.stream(stream):
        for batch in DevicePrefetcher(source(), depth=2):
            torch.cuda._sleep(5_000_000)
            sums.append(batch["tensor"].sum())
            del batch
    torch.cuda.synchronize()
    assert [int(total) for total in sums] == [number * size for number in range(60)]


@pytest.mark.gpu
def test_handing_out_does_not_wait_for_the_gpu():
    batches = [{"tensor": torch.zeros(1000), "cursor": {"position": n}} for n in range(10)]
    iterator = iter(DevicePrefetcher(batches, depth=2))
    next(iterator)
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert [batch["cursor"]["position"] for batch in iterator] == list(range(1, 10))
    finally:
        torch.cuda.set_sync_debug_mode("default")
