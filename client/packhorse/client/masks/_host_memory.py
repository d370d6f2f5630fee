"""Host memory of dense masks: new, all zero, and in huge pages if the system has them."""

import contextlib
import math
import mmap

import torch

_HUGE_PAGE_BYTES = 2 << 20
"""Size of a huge page; smaller masks get normal pages."""


def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Returns new host memory, all zero, in huge pages if the system has them.

    Dense masks are so large that the allocator gets new pages from the system each time. With normal pages, half of the
    time would go into page faults, one for every 4 KiB.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < _HUGE_PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=dtype)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel built without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
