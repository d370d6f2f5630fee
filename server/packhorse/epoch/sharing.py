"""Work on many bins cut into pieces, of which other threads take some while they have nothing else to do.

Owns how work is cut, and who is asked to share it. Leaves threads to whoever has them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TypeAlias, TypeVar

_Result = TypeVar("_Result")

Share: TypeAlias = Callable[[Sequence[Callable[[], object]]], None]
"""Does pieces of work in any order and any threads, and returns when all are done."""

BINS_PER_PIECE = 4096
"""Some tenths of a millisecond: long enough to be worth a thread, short enough that none waits for another for long."""

_SHARE: ContextVar[Share | None] = ContextVar("share", default=None)


@contextmanager
def shared_by(share: Share) -> Iterator[None]:
    """Within it, what this thread does for many bins is shared.

    Example:
        >>> def share(pieces):
        ...     print(len(pieces), "pieces")
        ...     for piece in pieces:
        ...         piece()
        >>> with shared_by(share):
        ...     in_pieces(lambda bins: None, 3 * BINS_PER_PIECE)
        3 pieces

    Args:
        share: does the pieces.
    """
    token = _SHARE.set(share)
    try:
        yield
    finally:
        _SHARE.reset(token)


def in_pieces(work: Callable[[slice], object], num_bins: int) -> None:
    """Does work on so many bins, slice by slice where that is shared, else at once.

    Args:
        work: does a slice of it, in any thread.
        num_bins: how many there are.
    """
    share = _SHARE.get()
    if share is None or num_bins <= BINS_PER_PIECE:
        work(slice(0, num_bins))
        return
    firsts = range(0, num_bins, BINS_PER_PIECE)
    share([partial(work, slice(first, min(first + BINS_PER_PIECE, num_bins))) for first in firsts])


def all_of(works: Sequence[Callable[[], _Result]], sizes: Sequence[int]) -> list[_Result]:
    """Does several pieces of work, which are shared where they are on many bins together, and returns their results.

    Example:
        >>> all_of([lambda: "one", lambda: "two"], [1, 1])
        ['one', 'two']

    Args:
        works: each may run in any thread.
        sizes: on how many bins each is; the largest are begun first, so that nobody waits for one of them at the end.
    """
    share = _SHARE.get()
    if share is None or sum(sizes) <= BINS_PER_PIECE:
        return [work() for work in works]
    results: dict[int, _Result] = {}

    def do(number: int) -> None:
        results[number] = works[number]()

    share([partial(do, number) for number in sorted(range(len(works)), key=lambda number: -sizes[number])])
    return [results[number] for number in range(len(works))]
