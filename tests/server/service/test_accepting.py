"""grpc.aio's accepting loop: what it asks for outlives its cancellation, takes few turns, and its end is noticed."""

import asyncio

import grpc
import pytest
from tests.waiting import some_turns

from packhorse.server.service import listening as module
from packhorse.server.service.listening import Accepting


def accepting_here():
    accepting = Accepting()
    asyncio.get_running_loop().set_task_factory(accepting.make_task)
    return accepting


async def _request_call(over, went_on):
    await over
    went_on.append(True)
    return "a request"


async def another(over, went_on):
    return await _request_call(over, went_on)


@pytest.mark.parametrize(("function", "goes_on"), [(_request_call, True), (another, False)])
def test_what_asks_for_a_request_goes_on_when_cancelled_and_nothing_else(function, goes_on):
    async def run():
        accepting_here()
        loop = asyncio.get_running_loop()
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

    assert asyncio.run(run()) is goes_on


def test_a_request_is_asked_for_at_once_and_had_in_the_turn_after_it_came():
    async def run():
        accepting_here()
        loop, asked = asyncio.get_running_loop(), []
        over = loop.create_future()

        async def _request_registered_call():
            asked.append(True)
            return await over

        asking = loop.create_task(_request_registered_call())
        assert asked == [True]
        over.set_result("a request")
        await asyncio.sleep(0)
        assert asking.result() == "a request"

    asyncio.run(run())


def test_what_fails_fails():
    async def _request_registered_call():
        raise LookupError("no such method")

    async def run():
        accepting_here()
        with pytest.raises(LookupError):
            await asyncio.get_running_loop().create_task(_request_registered_call())

    asyncio.run(run())


def test_grpcs_coroutines_have_the_names_that_are_looked_for(monkeypatch):
    asked = set()

    class Asked(module.Shielded):
        def __init__(self, loop, coroutine):
            asked.add(coroutine.__name__)
            super().__init__(loop, coroutine)

    monkeypatch.setattr(module, "Shielded", Asked)

    async def run():
        accepting = accepting_here()
        server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
        server.add_registered_method_handlers("packhorse.Test", {"Answer": handler})
        await server.start()
        ended = asyncio.ensure_future(accepting.ended())
        await some_turns()
        assert not ended.done()
        await server.stop(None)
        return await asyncio.wait_for(ended, 20)

    assert asyncio.run(run()) is None
    assert asked == module._ASKING


def test_where_grpc_names_its_coroutines_otherwise_it_serves_as_it_does_by_itself(monkeypatch, caplog):
    monkeypatch.setattr(module, "_ASKING", frozenset({"_renamed_call"}))
    monkeypatch.setattr(module, "_ACCEPTING", "_renamed_loop")

    async def answer(request, context):
        return request

    async def run():
        accepting = accepting_here()
        server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(answer)
        server.add_registered_method_handlers("packhorse.Test", {"Answer": handler})
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        ended = asyncio.ensure_future(accepting.ended())
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            assert await channel.unary_unary("/packhorse.Test/Answer")(b"request", timeout=20) == b"request"
        assert not ended.done()
        ended.cancel()
        await server.stop(None)

    asyncio.run(asyncio.wait_for(run(), 60))
    (line,) = [record.getMessage() for record in caplog.records if record.name == module.__name__]
    assert "upgrade packhorse" in line
