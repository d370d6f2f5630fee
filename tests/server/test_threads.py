"""The threads of a lane: the order of work, head starts, and whether more of it is wanted."""

import gc
import threading
import weakref

import pytest

from packhorse.server.threads import Threads


@pytest.fixture
def make_threads():
    made = []

    def make(number=1):
        made.append(Threads("test", number))
        return made[-1]

    yield make
    for threads in made:
        threads.close()


@pytest.fixture
def held(make_threads):
    """One thread that is at work until `gate` is set."""
    threads, gate, begun = make_threads(), threading.Event(), threading.Event()

    def hold():
        begun.set()
        gate.wait(10)

    threads.submit(hold)
    assert begun.wait(10)
    yield threads, gate
    gate.set()


def test_work_is_taken_up_as_it_came_but_for_what_has_a_head_start(held):
    threads, gate = held
    log = []
    waiting = [
        threads.submit(log.append, "last", head_start_seconds=-100),
        threads.submit(log.append, "second"),
        threads.submit(log.append, "third"),
        threads.submit(log.append, "first", head_start_seconds=100),
    ]
    gate.set()
    for future in waiting:
        future.result(10)
    assert log == ["first", "second", "third", "last"]


def test_a_head_start_is_no_more_than_it_says(held, monkeypatch):
    threads, gate = held
    now, log = [1000.0], []
    monkeypatch.setattr("packhorse.server.threads.time.monotonic", lambda: now[0])
    old = threads.submit(log.append, "waits for two seconds")
    now[0] += 2
    openings = [threads.submit(log.append, "opening", head_start_seconds=1) for _ in range(3)]
    gate.set()
    for future in (old, *openings):
        future.result(10)
    assert log == ["waits for two seconds", *["opening"] * 3]


def test_work_is_short_until_each_thread_has_some_and_one_more_piece_waits(held):
    threads, gate = held
    assert threads.is_short_of_work
    waiting = threads.submit(int)
    assert not threads.is_short_of_work
    gate.set()
    waiting.result(10)
    for _ in range(2):  # two turns: each is counted until its thread takes up the next
        threads.submit(int).result(10)
    assert threads.is_short_of_work


def test_what_is_cancelled_never_runs(held):
    threads, gate = held
    log = []
    cancelled, other = threads.submit(log.append, "cancelled"), threads.submit(log.append, "other")
    assert cancelled.cancel()
    gate.set()
    other.result(10)
    assert log == ["other"]


def test_closing_drops_what_waits_and_ends_the_threads():
    before = set(threading.enumerate())
    threads, gate = Threads("closing", 3), threading.Event()
    begun = threading.Semaphore(0)
    running = [threads.submit(lambda: (begun.release(), gate.wait(10))) for _ in range(3)]
    for _ in range(3):
        assert begun.acquire(timeout=10)
    waiting = threads.submit(int)
    threads.close()
    assert waiting.cancelled()
    gate.set()
    for future in running:
        assert future.result(10)[1]
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()


def test_no_thread_keeps_what_it_made(make_threads):
    class Block:
        pass

    threads = make_threads()
    kept = weakref.ref(threads.submit(Block).result(10))
    threads.submit(int).result(10)  # the one before is over then
    gc.collect()
    assert kept() is None
