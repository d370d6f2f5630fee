"""Which mapped files are asked for in huge pages."""

import mmap

import numpy as np
import pytest

from packhorse.dataset import arrays as _huge_pages
from packhorse.dataset.arrays import (
    HUGE_PAGE_BYTES,
    ask_for_huge_pages,
    create_array,
    map_array,
    memory_bytes,
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
    monkeypatch.setattr(_huge_pages, "memory_bytes", lambda: 100 << 20)
    mapped = _Mapped(num_bytes)
    ask_for_huge_pages(mapped)
    assert mapped.advice == [mmap.MADV_HUGEPAGE] * asks


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
def test_a_container_has_the_memory_of_its_control_group(tmp_path, name):
    machine = memory_bytes(tmp_path)
    assert machine > 1 << 20
    (tmp_path / name).parent.mkdir(exist_ok=True)
    for limit, expected in (("1048576\n", 1 << 20), ("max\n", machine), (str(2**62), machine)):
        (tmp_path / name).write_text(limit)
        assert memory_bytes(tmp_path) == expected


def test_a_large_array_is_mapped_as_it_was_written(tmp_path):
    path, values = tmp_path / "pools.npy", np.arange(HUGE_PAGE_BYTES, dtype=np.uint32)
    create_array(path, "uint32", values.shape)
    write_entries(path, 0, values)
    mapped = map_array(path, "uint32", values.shape)
    assert np.array_equal(mapped, values)
    assert not mapped.flags.writeable
