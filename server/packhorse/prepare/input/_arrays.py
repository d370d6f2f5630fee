"""Array files, whose headers one thread reads at a time.

NumPy parses a header as Python, and in Python 3.11 two threads that parse at once may end in a SystemError
(python/cpython#106905; seen in 3.11.7).
"""

from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

PARSING = Lock()
"""Held while a header is read."""


def map_array(path: str | Path, *, writable: bool = False) -> NDArray[Any]:
    """Maps an array file; many threads may do so at once.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(Path(folder, "lengths.npy"), [5, 3])
        ...     map_array(Path(folder, "lengths.npy")).tolist()
        [5, 3]

    Raises:
        OSError: it cannot be opened.
        ValueError: it is no array, or holds Python objects.
    """
    with PARSING:
        array: NDArray[Any] = np.load(path, mmap_mode="r+" if writable else "r", allow_pickle=False)
    return array
