"""Waiting for what a test expects to happen: polls that fail in the end, and never a fixed sleep.

Owns the only loops of the tests that wait for a state.
"""

import asyncio
import os
import time
from types import SimpleNamespace

POLL_SECONDS = 0.02


def wait_until(condition, seconds=20.0):
    """Polls a condition until it is true, and returns its value; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(POLL_SECONDS)
    return value


async def until(condition, seconds=20.0):
    """The same in an event loop, whose other tasks go on."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        await asyncio.sleep(POLL_SECONDS)
    return value


async def some_turns():
    """Lets every task that can run do so, and what those begin."""
    for _ in range(5):
        await asyncio.sleep(0)


def processor_seconds(pid):
    """What a process has computed so far."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_until_busy(pid, seconds=0.2):
    """Waits until a process has computed for so long from now on."""
    before = processor_seconds(pid)
    wait_until(lambda: processor_seconds(pid) - before >= seconds)


def time_with(**functions):
    """The module `time` with some functions of one's own, for one module of ours.

    In `time` itself they would stop whatever else waits in this process, such as the end of a loader's workers.
    """
    return SimpleNamespace(**vars(time) | functions)
