"""The threads of a lane: the order of work, head starts, and work that several share."""

import gc
import threading
import weakref
from functools import partial

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


def test_an_idle_thread_takes_a_share(make_threads):
    threads, meeting, idents = make_threads(2), threading.Barrier(2), []

    def meet():
        meeting.wait(10)  # breaks unless both are at work at once
        idents.append(threading.get_ident())

    threads.submit(lambda: threads.share([meet, meet])).result(20)
    assert len(set(idents)) == 2


def test_without_an_idle_thread_one_does_all(held):
    threads, _ = held
    order = []
    threads.share([lambda: order.append(1), lambda: order.append(2), lambda: order.append(3)])
    assert order == [1, 2, 3]


def test_each_piece_is_done_once(make_threads):
    threads, done = make_threads(3), []
    for _ in range(20):
        done.clear()
        threads.submit(threads.share, [partial(done.append, number) for number in range(50)]).result(10)
        assert sorted(done) == list(range(50))


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("error", [LookupError, IndexError])
@pytest.mark.parametrize("failing", [0, 1])
def test_what_a_piece_raises_is_raised(make_threads, number, error, failing):
    def piece(which):
        if which == failing:
            raise error(f"piece {which}")

    threads = make_threads(number)
    for _ in range(20):
        future = threads.submit(lambda: threads.share([partial(piece, 0), partial(piece, 1)]))
        with pytest.raises(error, match=f"piece {failing}"):
            future.result(10)
    assert threads.submit(lambda: "goes on").result(10) == "goes on"


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
