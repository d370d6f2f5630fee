"""Work that many callers ask for at nearly the same time: handed to a lane's thread together, and taken back together.

Owns how much is gathered and for how long; leaves the thread to `lanes`, and when callers are many to whoever asks.

A lane's thread and the event loop take turns on the interpreter. Where each of a thousand openings is handed over by
itself, a quarter of its processor time goes into changing turns. So some are gathered, and the loop then gives way to
the thread until these are done: both cannot run at the same time anyway.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from packhorse.server.lanes import Lane, Queued

_Result = TypeVar("_Result")

GATHER_SECONDS = 0.008
"""How long the first of some waits for others."""

MOST_TOGETHER = 32
"""So many are not waited with any longer."""

GIVE_WAY_SECONDS = 0.01
"""How long the loop gives way at once. Where nothing was done since, the thread waits for a disk, and the loop goes on
until it does not."""


class Together:
    """Hands work to a lane, some at a time. Used from one event loop only.

    Example:
        >>> async def add():
        ...     lane = Lane("example", threads=1)
        ...     together = Together(lane)
        ...     sums = [together.submit(sum, numbers, gathers=True) for numbers in ([1, 2], [3, 4])]
        ...     return await asyncio.gather(*sums)
        >>> asyncio.run(add())
        [3, 7]

    Args:
        lane: in which the work is done.
        head_start_seconds: it goes before what came so much earlier.
    """

    def __init__(self, lane: Lane, head_start_seconds: float = 0.0) -> None:
        self._lane = lane
        self._head_start_seconds = head_start_seconds
        self._gathered: list[_Piece] = []
        self._newest: _Turn | None = None
        self._num_done = self._num_seen = 0

    def submit(self, work: Callable[..., _Result], *arguments: Any, gathers: bool) -> "asyncio.Future[_Result]":
        """Has work done in the lane's thread. Cancelled before its turn, it never runs.

        Args:
            work: is called in the thread.
            arguments: of it.
            gathers: whether it waits for others.
        """
        loop = asyncio.get_running_loop()
        awaited: asyncio.Future[_Result] = loop.create_future()
        self._gathered.append(_Piece(awaited, work, arguments, self._lane.queued(), self._count))
        if not gathers or len(self._gathered) == MOST_TOGETHER:
            self._hand_over()
        elif len(self._gathered) == 1:
            loop.call_later(GATHER_SECONDS, self._hand_over)
        return awaited

    def _hand_over(self) -> None:
        if not self._gathered:  # others were enough
            return
        turn, self._gathered = _Turn(self._gathered), []
        before, self._newest = self._newest, turn
        done = self._lane.submit(turn.take, head_start_seconds=self._head_start_seconds, is_counted=False)
        done.add_done_callback(turn.end)
        is_free = before is None or before.is_over.is_set()
        if turn.is_of_many and (is_free or self._num_done > self._num_seen):
            turn.is_over.wait(GIVE_WAY_SECONDS)
            self._num_seen = self._num_done
            turn.give()

    def _count(self) -> None:
        """Counts a piece that is done, in the thread."""
        self._num_done += 1


class _Piece:
    """One caller's work.

    Args:
        awaited: what the caller waits for.
        work: is called in a thread.
        arguments: of it.
        queued: how metrics count it, until its turn.
        count: is called once it is done.
    """

    def __init__(
        self,
        awaited: "asyncio.Future[Any]",
        work: Callable[..., Any],
        arguments: tuple[Any, ...],
        queued: Queued,
        count: Callable[[], None],
    ) -> None:
        self.awaited = awaited
        self._queued = queued
        self._count = count
        self._work = work
        self._arguments = arguments
        self._result: Any = None
        self._error: BaseException | None = None
        self._is_done = False

    def do(self) -> None:
        """Does the work, in the thread."""
        if self.awaited.cancelled():
            self._queued.leave()
            return
        self._queued.begin()
        try:
            self._result = self._work(*self._arguments)
        except BaseException as error:
            self._error = error
        self._is_done = True
        self._count()

    def drop(self) -> None:
        """It never has its turn, in the loop."""
        self._queued.leave()
        self.awaited.cancel()

    def give(self) -> None:
        """Hands over what came of it, in the loop; nothing where it is not done."""
        if not self._is_done or self.awaited.done():
            return
        error, self._error = self._error, None  # else an error and the frame of `do` would keep each other
        if error is None:
            self.awaited.set_result(self._result)
        else:
            self.awaited.set_exception(error)


class _Turn:
    """Pieces that are done one after the other.

    Args:
        pieces: of some callers.
    """

    def __init__(self, pieces: list[_Piece]) -> None:
        self._pieces = pieces
        self.is_of_many = len(pieces) > 1
        self.is_over = threading.Event()

    def take(self) -> None:
        """Does all, in the thread."""
        for piece in self._pieces:
            piece.do()
        self.is_over.set()

    def give(self) -> None:
        """Hands over what is done by now."""
        for piece in self._pieces:
            piece.give()

    def end(self, done: "asyncio.Future[None]") -> None:
        """Hands over the rest; where the lane was closed before the turn, nothing comes of it."""
        self.give()
        if done.cancelled():
            for piece in self._pieces:
                piece.drop()
        self._pieces = []
