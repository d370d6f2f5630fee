"""Processors that a container may use, from files as the kernel writes them."""

import os
import resource

import pytest
from tests.faulty_server import Faults

from packhorse.server.base import machine
from packhorse.server.base.machine import Resources, available_cores, open_descriptors, quotas


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
    monkeypatch.setattr(machine, "quotas", lambda *_: quota)
    assert available_cores() == expected


@pytest.mark.parametrize(("most_streams", "is_warned"), [(100, False), (10_000, True)])
def test_a_server_takes_as_many_as_it_may_and_says_where_they_are_few(corpus, make_server, most_streams, is_warned):
    with make_server(corpus.root, "--max-streams", most_streams, faults=Faults(descriptors=(256, 4096))) as server:
        assert resource.prlimit(server.pid, resource.RLIMIT_NOFILE) == (4096, 4096)
        assert ("may have 4096 files and connections open" in server.log()) == is_warned


def test_when_descriptors_run_out_all_of_them_count_as_open():
    """Listing them needs one more: the metric said 0 then, and its alert could not fire."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(open_descriptors())
    held = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 4, before[1]))
        while len(held) < 4 + highest:
            try:
                held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        now = Resources.now()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for each in held:
            os.close(each)
    assert now.open_files == now.most_open_files == highest + 4
