"""Results of threads on their way into an event loop."""

import asyncio
import threading
from concurrent.futures import Future

import pytest

from packhorse.server.arrivals import Arrivals


def test_results_and_errors_arrive_and_in_one_wake_up_where_they_are_there_together(monkeypatch):
    async def run():
        loop, arrivals, wake_ups = asyncio.get_running_loop(), Arrivals(), []
        call = loop.call_soon_threadsafe
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *what: (wake_ups.append(what), call(*what))[1])
        works = [Future() for _ in range(4)]
        awaited = [arrivals.awaited(work) for work in works]

        def end():
            for number, work in enumerate(works[:3]):
                work.set_result(number)
            works[3].set_exception(LookupError("lost"))

        thread = threading.Thread(target=end)
        thread.start()
        thread.join()  # without a turn of the loop
        assert not any(each.done() for each in awaited)
        assert await asyncio.gather(*awaited[:3]) == [0, 1, 2]
        with pytest.raises(LookupError, match="lost"):
            await awaited[3]
        assert len(wake_ups) == 1
        later = Future()
        threading.Timer(0.01, later.set_result, ("later",)).start()
        assert await asyncio.wait_for(arrivals.awaited(later), 20) == "later"
        assert len(wake_ups) == 2

    asyncio.run(run())


def test_cancelling_goes_both_ways_and_a_result_that_nobody_awaits_is_dropped():
    async def run():
        arrivals = Arrivals()
        dropped, left, begun = Future(), Future(), Future()
        of_dropped, of_left, of_begun = (arrivals.awaited(each) for each in (dropped, left, begun))
        dropped.cancel()
        of_left.cancel()
        assert begun.set_running_or_notify_cancel()
        of_begun.cancel()
        await asyncio.sleep(0)
        begun.set_result("for nobody")
        await asyncio.wait_for(asyncio.wait((of_dropped,)), 20)
        assert of_dropped.cancelled()
        assert left.cancelled()
        other = Future()
        other.set_result("goes on")
        assert await asyncio.wait_for(arrivals.awaited(other), 20) == "goes on"

    asyncio.run(run())
