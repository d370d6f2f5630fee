"""When a server's processes are replaced; that they are, and serve as one, stands in tests/integration."""

import asyncio
from collections import Counter

import pytest
from tests.waiting import until

from packhorse.server.app import processes
from packhorse.server.app.config import ServeConfig
from packhorse.server.app.processes import _Parent, _Process


class Dying:
    """Stands in for a process that serves at once, and ends when its time is over.

    Args:
        lives: until this is done.
    """

    pid = 1

    def __init__(self, lives):
        self._lives, self.handle, self.started = lives, self, processes.time.monotonic()

    async def datasets(self):
        return ["some"]

    async def ended(self):
        await self._lives
        return 1

    def send_signal(self, number):
        self._lives.cancel()


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Runs a parent of two for some time; returns how often each was started, given who lives on and until when."""
    monkeypatch.setattr(processes, "FIRST_DELAY_SECONDS", 0.001)
    monkeypatch.setattr(processes, "MOST_DELAY_SECONDS", 10_000)

    async def run(lives_on, is_enough):
        loop, starts = asyncio.get_running_loop(), Counter()

        async def start(place):
            starts[place.slot] += 1
            lives = loop.create_future()
            if place.slot not in lives_on:
                loop.call_soon(lambda: lives.done() or lives.set_result(None))
            return Dying(lives)

        monkeypatch.setattr(_Process, "start", start)
        parent = _Parent(ServeConfig(data_root=tmp_path, processes=2), tmp_path)
        await parent.begin()
        keeping = asyncio.ensure_future(parent.replace_dead())
        await until(lambda: is_enough(starts))
        keeping.cancel()
        return starts

    return lambda *of_what: asyncio.run(run(*of_what))


def test_no_process_waits_while_nobody_serves(started):
    """Thirty deaths would be followed by twelve days of waiting, were each to double it."""
    starts = started((), lambda starts: min(starts[0], starts[1]) >= 30)
    assert min(starts.values()) >= 30


def test_a_process_that_dies_again_and_again_waits_while_another_serves(started):
    polls = iter(range(50))
    starts = started((0,), lambda _starts: next(polls, None) is None)
    assert starts[0] == 1
    assert 2 <= starts[1] < 30
