"""What a process takes of its machine, and the memory that it may have."""

import pytest

from packhorse.server.watching.connections import Connections
from packhorse.server.watching.metrics import Metrics
from packhorse.server.watching.resources import Measuring, Resources, memory_limit

MACHINE = "MemTotal:       1024 kB\nMemFree:          12 kB\n"


@pytest.mark.parametrize(
    ("listed", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "700000\n"}, 700_000),  # as a container sees itself
        ("0::/\n", {"memory.max": "max\n"}, 1 << 20),
        ("0::/a/b\n", {"a/memory.max": "500000\n", "a/b/memory.max": "max\n"}, 500_000),
        ("0::/a/b\n", {"a/memory.max": "500000\n", "a/b/memory.max": "400000\n"}, 400_000),
        ("7:memory:/pod\n", {"memory/pod/memory.limit_in_bytes": "300000\n"}, 300_000),
        ("7:memory:/pod\n", {"memory/pod/memory.limit_in_bytes": "9223372036854771712\n"}, 1 << 20),
        ("0::/\n", {"memory.max": "9999999\n"}, 1 << 20),  # more than there is
        ("0::/\n", {"memory.max": "junk"}, 1 << 20),
        ("", {}, 1 << 20),
    ],
)
def test_the_smallest_limit_of_memory_counts(tmp_path, listed, files, expected):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory_limit(listed, MACHINE, tmp_path) == expected


def test_where_the_system_says_nothing_there_is_no_limit(tmp_path):
    assert memory_limit("", "", tmp_path) == 0


def test_mapped_files_are_not_memory_of_its_own(tmp_path):
    import mmap

    path, size = tmp_path / "pool", 64 << 20
    path.write_bytes(bytes(size))
    before = Resources.now().memory_bytes
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pool:
        assert sum(pool[:: mmap.PAGESIZE]) == 0  # every page is there
        assert Resources.now().memory_bytes < before + size // 2
    held = bytearray(size)
    assert Resources.now().memory_bytes > before + size // 2
    del held


def test_a_look_moves_metrics_and_the_answer_of_get_activity():
    metrics = Metrics(list)
    measuring = Measuring(metrics, Connections())
    assert measuring.activity().memory_bytes == 0
    measuring.look()
    seconds = metrics.registry.get_sample_value("packhorse_processor_seconds_total")
    measuring.look()
    assert metrics.registry.get_sample_value("packhorse_processor_seconds_total") >= seconds > 0
    assert metrics.registry.get_sample_value("packhorse_memory_bytes") == measuring.activity().memory_bytes > 0
    assert measuring.activity().open_files > 0
