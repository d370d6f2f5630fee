"""Processors and memory that a container may use, from files as the kernel writes them."""

import os

import pytest

from packhorse.jobs import available_cores, control_groups, memory_limit
from packhorse.jobs.control_groups import quotas
from packhorse.prepare.job import default_workers


@pytest.fixture
def groups(tmp_path):
    """Function: writes files below the root of control groups, and returns it."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("listed", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, [1.5]),  # as a container sees itself
        ("0::/\n", {"cpu.max": "max 100000\n"}, []),
        ("0::/\n", {}, []),
        ("0::/a/b\n", {"a/cpu.max": "50000 100000\n", "a/b/cpu.max": "max 100000\n"}, [0.5]),
        ("0::/a/b\n", {"cpu.max": "400000 100000\n", "a/b/cpu.max": "200000 100000\n"}, [2.0, 4.0]),
        ("5:cpu,cpuacct:/pod\n", {"cpu/pod/cpu.cfs_quota_us": "300000", "cpu/pod/cpu.cfs_period_us": "100000"}, [3.0]),
        ("5:cpu,cpuacct:/pod\n", {"cpu/pod/cpu.cfs_quota_us": "-1", "cpu/pod/cpu.cfs_period_us": "100000"}, []),
        ("4:cpuset:/\n1:name=systemd:/\n", {"cpu.max": "1 1"}, []),
        ("", {}, []),
        ("0::/\n", {"cpu.max": "junk"}, []),
        ("0::/\n", {"cpu.max": "100000 0"}, []),
    ],
)
def test_quotas_of_all_groups_above(groups, listed, files, expected):
    assert sorted(quotas(listed, groups(files))) == expected


@pytest.mark.parametrize(
    ("quota", "expected"), [([], 4), ([0.2], 1), ([1.5, 9.0], 2), ([4.0], 4), ([64.0], 4), ([3.0], 3)]
)
def test_the_smallest_quota_counts_rounded_up(monkeypatch, quota, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(control_groups, "quotas", lambda *_: quota)
    assert available_cores() == expected


def test_prepare_takes_no_more_workers_than_the_container_lets_them(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(96)))
    monkeypatch.setattr(control_groups, "quotas", lambda *_: [2.0])
    monkeypatch.setattr(os, "cpu_count", lambda: 96)
    assert default_workers(10**9) == 2


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
def test_the_smallest_limit_of_memory_counts(monkeypatch, groups, listed, files, expected):
    root = groups(files | {"listed": listed})
    monkeypatch.setattr(control_groups, "MOUNT", root)
    monkeypatch.setattr(control_groups, "OWN_GROUPS", root / "listed")
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 1024, "SC_PHYS_PAGES": 1024}.__getitem__)
    assert memory_limit() == expected
