"""Requests that gRPC was asked for live on when grpc.aio cancels them."""

import asyncio

import grpc
import pytest

from packhorse.server import accepting
from packhorse.server.accepting import keep_asked_requests


async def run_and_cancel(function):
    """Cancels a coroutine that waits; returns whether it goes on nevertheless when its wait is over."""
    loop = asyncio.get_running_loop()
    loop.set_task_factory(keep_asked_requests)
    over, went_on = loop.create_future(), []
    task = loop.create_task(function(over, went_on))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    if not over.done():
        over.set_result(None)
    for _ in range(3):
        await asyncio.sleep(0)
    return bool(went_on)


async def _request_call(over, went_on):
    await over
    went_on.append(True)


async def another(over, went_on):
    await over
    went_on.append(True)


def test_what_asks_for_a_request_goes_on_and_nothing_else():
    assert asyncio.run(run_and_cancel(_request_call))
    assert not asyncio.run(run_and_cancel(another))
    assert not accepting._asked


def test_grpcs_coroutines_have_the_names_that_are_looked_for():
    async def names():
        asyncio.get_running_loop().set_task_factory(keep_asked_requests)
        server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
        server.add_registered_method_handlers("packhorse.Test", {"Answer": handler})
        await server.start()
        await asyncio.sleep(0.05)
        found = {task.get_coro().__name__ for task in accepting._asked}
        await server.stop(None)
        return found

    assert asyncio.run(names()) == accepting._ASKING
