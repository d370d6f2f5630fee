"""Descriptors of a server."""

import os
import resource

import pytest
from tests.faulty_server import Faults

from packhorse.server.base.machine import Resources, open_descriptors


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
