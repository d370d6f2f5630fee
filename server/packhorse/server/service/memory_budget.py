"""A budget of bytes that all requests share.

Owns the counting and the waiting. Leaves the refusals to `servicer`, how much a request needs to `backend`, how many
bytes there are to whoever makes a budget (`servicer` for answers, `followed_call` for requests), the largest message to
`sizes`, and the number of streams to `stream_limit`.
"""

import asyncio

DECODED_BYTES_PER_BYTE = 8
"""A decoded request takes at most this multiple of its size on the wire: a number of one byte becomes one of eight."""


class OutOfMemoryBudgetError(Exception):
    """Other requests hold the memory, and did not give it back in time."""


class MemoryBudget:
    """Bytes that requests may hold together. Used from one event loop only.

    Args:
        total_bytes: of all requests.
        wait_seconds: how long a request waits for others to give back what it needs.
    """

    def __init__(self, total_bytes: int, wait_seconds: float) -> None:
        self.total_bytes = total_bytes
        self.held_bytes = 0
        self._wait_seconds = wait_seconds
        self._given_back = asyncio.Event()

    def share(self) -> "MemoryShare":
        """Returns a request's share, empty at first."""
        return MemoryShare(self)

    async def take(self, num_bytes: int) -> None:
        """Takes bytes; waits if other requests hold them.

        Raises:
            OutOfMemoryBudgetError: they cannot be had within `wait_seconds`.
        """
        try:
            if self.held_bytes + num_bytes > self.total_bytes:
                async with asyncio.timeout(self._wait_seconds):
                    while self.held_bytes + num_bytes > self.total_bytes:
                        self._given_back.clear()
                        await self._given_back.wait()
        except TimeoutError:
            raise OutOfMemoryBudgetError from None
        self.held_bytes += num_bytes

    def give_back(self, num_bytes: int) -> None:
        """Gives bytes back."""
        self.held_bytes -= num_bytes
        self._given_back.set()


class MemoryShare:
    """The bytes that one request holds of a budget, until the end of the `with` block that enters the share."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._held_bytes = 0

    async def hold(self, num_bytes: int) -> None:
        """Holds this number of bytes from now on, more or fewer than before.

        Raises:
            OutOfMemoryBudgetError: the missing bytes cannot be had in time; the share stays what it was.
        """
        if num_bytes > self._held_bytes:
            await self._budget.take(num_bytes - self._held_bytes)
        else:
            self._budget.give_back(self._held_bytes - num_bytes)
        self._held_bytes = num_bytes

    def end(self) -> None:
        """Gives everything back."""
        self._budget.give_back(self._held_bytes)
        self._held_bytes = 0

    def __enter__(self) -> "MemoryShare":
        """Returns the share."""
        return self

    def __exit__(self, *_: object) -> None:
        """Gives everything back."""
        self.end()
