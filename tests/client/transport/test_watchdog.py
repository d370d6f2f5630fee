"""Deadlines of messages: one thread for all calls, in each process."""

import os
import threading

import pytest

from packhorse.client.transport import _watchdog as watchdog
from packhorse.client.transport._watchdog import NoMessageError, next_message


class Call:
    """Brings nothing until it is cancelled, or what is there already."""

    def __init__(self, *messages):
        self._messages = list(messages)
        self._over = threading.Event()

    def __iter__(self):
        return self

    def __next__(self):
        if self._messages:
            return self._messages.pop()
        assert self._over.wait(20)
        raise RuntimeError("cancelled")

    def cancel(self):
        self._over.set()


def test_many_connections_have_one_thread(wait_until):
    calls = [Call() for _ in range(20)]

    def wait(call):
        with pytest.raises(RuntimeError, match="cancelled"):
            next_message(call, 60.0)

    waiting = [threading.Thread(target=wait, args=(call,)) for call in calls]
    for thread in waiting:
        thread.start()
    wait_until(lambda: len(watchdog._WATCHDOG._waits) == len(calls))
    assert sum(thread.name == "packhorse-watchdog" for thread in threading.enumerate()) == 1
    for thread, call in zip(waiting, calls, strict=True):
        call.cancel()
        thread.join(20)


def test_a_call_that_is_overdue_is_cancelled_while_others_may_take_longer():
    next_message(Call("soon"), 60.0)
    with pytest.raises(NoMessageError, match=r"no message within 0\.1 s"):
        next_message(Call(), 0.1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_fork_has_a_watchdog_of_its_own():
    next_message(Call("parent"), 60.0)
    child = os.fork()
    if not child:
        try:
            next_message(Call(), 0.1)
        except NoMessageError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
