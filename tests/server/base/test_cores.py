"""Processors that a container may use, from files as the kernel writes them."""

import os

import pytest

from packhorse.server.base import cores
from packhorse.server.base.cores import available_cores, quotas


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
    monkeypatch.setattr(cores, "quotas", lambda *_: quota)
    assert available_cores() == expected
