"""What progress shows: lines with rate and time left where there is no terminal, bars on one, nothing when quiet."""

import io

import pytest

from packhorse.jobs import progress as module
from packhorse.jobs import show_progress
from packhorse.jobs.progress import Lines


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_line_every_five_seconds_and_one_at_the_end(clock: Clock) -> None:
    stream = io.StringIO()
    with Lines(stream, clock).task("counting lengths", 4_000, "rows") as advance:
        for _ in range(4):
            clock.now += 2.5
            advance(1_000)
    assert stream.getvalue().splitlines() == [
        "counting lengths: 2,000 of 4,000 rows (50%), 400/s, 5 s left",
        "counting lengths: 4,000 of 4,000 rows (100%), 400/s, 0 s left",
        "counting lengths: 4,000 rows done in 10 s",
    ]


def test_a_task_of_unknown_size_says_what_is_known(clock: Clock) -> None:
    stream = io.StringIO()
    with Lines(stream, clock).task("tokenizing", unit="documents") as advance:
        clock.now += 4_000
        advance(8_000)
    with Lines(stream, clock).task("planning"):
        clock.now += 75
    assert stream.getvalue().splitlines() == [
        "tokenizing: 8,000 documents, 2/s",
        "tokenizing: 8,000 documents done in 1:06:40 h",
        "planning: done in 1:15 min",
    ]


def test_time_left_is_told_once_more_is_done_than_to_start(clock: Clock) -> None:
    """A first piece that took six seconds of starting says nothing of a million others; a minute does."""
    stream = io.StringIO()
    with Lines(stream, clock).task("auditing", 1_000_000, "bins") as advance:
        for seconds, count in ((6, 6), (6, 20_994)):
            clock.now += seconds
            advance(count)
    with Lines(stream, clock).task("preparing", 1_000_000, "rows") as advance:
        clock.now += 60
        advance(6_000)
    assert stream.getvalue().splitlines() == [
        "auditing: 6 of 1,000,000 bins (0%), 1/s",
        "auditing: 21,000 of 1,000,000 bins (2%), 1,750/s, 9:19 min left",
        "auditing: 21,000 bins done in 12 s",
        "preparing: 6,000 of 1,000,000 rows (1%), 100/s, 2:45:40 h left",
        "preparing: 6,000 rows done in 1:00 min",
    ]


def test_a_short_task_and_one_that_fails_say_nothing_more(clock: Clock) -> None:
    stream = io.StringIO()
    lines = Lines(stream, clock)
    assert list(lines.track("abc", "reading", 3)) == ["a", "b", "c"]

    def fail() -> None:
        clock.now += 60
        raise ValueError

    with pytest.raises(ValueError), lines.task("reading", 3):
        fail()
    assert stream.getvalue() == ""


def test_quiet_shows_nothing_wherever_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SECONDS_BETWEEN_LINES", 0.0)
    shown = {}
    for stream in (io.StringIO(), Terminal()):
        for quiet in (False, True):
            begins = stream.tell()
            with show_progress(quiet=quiet, stream=stream) as progress:
                assert list(progress.track(range(3), "reading", 3, "rows")) == [0, 1, 2]
            shown[type(stream), quiet] = stream.getvalue()[begins:]
    assert "reading: 3 rows done" in shown[io.StringIO, False]
    assert "reading (rows)" in shown[Terminal, False]
    assert shown[io.StringIO, True] == shown[Terminal, True] == ""
