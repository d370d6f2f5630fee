"""Which mapped files are asked for in huge pages."""

import mmap

import numpy as np
import pytest

from packhorse.dataset import arrays
from packhorse.dataset.arrays import (
    HUGE_PAGE_BYTES,
    ask_for_huge_pages,
    create_array,
    map_array,
    write_entries,
)


class _Mapped:
    """Stands for a mapped file, and keeps what it was advised."""

    def __init__(self, num_bytes):
        self.num_bytes = num_bytes
        self.advice = []

    def __len__(self):
        return self.num_bytes

    def madvise(self, option):
        self.advice.append(option)
        raise OSError("a system without huge pages")


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="this system has no huge pages")
@pytest.mark.parametrize(
    ("num_bytes", "asks"),
    [(HUGE_PAGE_BYTES - 1, False), (HUGE_PAGE_BYTES, True), (25 << 20, True), ((25 << 20) + 1, False)],
)
def test_only_files_that_fit_into_memory_are_asked_for(monkeypatch, num_bytes, asks):
    monkeypatch.setattr(arrays, "memory_limit", lambda: 100 << 20)
    mapped = _Mapped(num_bytes)
    ask_for_huge_pages(mapped)
    assert mapped.advice == [mmap.MADV_HUGEPAGE] * asks


def test_a_large_array_is_mapped_as_it_was_written(tmp_path):
    path, values = tmp_path / "pools.npy", np.arange(HUGE_PAGE_BYTES, dtype=np.uint32)
    create_array(path, "uint32", values.shape)
    write_entries(path, 0, values)
    mapped = map_array(path, "uint32", values.shape)
    assert np.array_equal(mapped, values)
    assert not mapped.flags.writeable
