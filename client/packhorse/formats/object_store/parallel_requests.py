"""`for_each`: several requests to stores at a time."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_MOST_REQUESTS = 16
"""Most requests at a time; each mostly waits for the network."""


def for_each(items: Iterable[_Item], ask: Callable[[_Item], _Result]) -> list[_Result]:
    """Returns `ask(item)` for every item, in order; several calls run at a time, since each waits for a store."""
    all_items = list(items)
    if len(all_items) < 2:
        return [ask(item) for item in all_items]
    with ThreadPoolExecutor(_MOST_REQUESTS, thread_name_prefix="packhorse-stores") as threads:
        return list(threads.map(ask, all_items))
