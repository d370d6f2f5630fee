"""Holding off Python's garbage collector while many small objects are made that cannot form cycles.

Owns that one context manager; which loops need it is their files' to say.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Switches the cyclic collector off for a block, and on again if it was on.

    A million new lists or tuples set off collections that walk every object of the process, and take longer than
    making them.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
