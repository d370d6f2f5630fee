"""How many files and connections a server may have open."""

import resource

import pytest
from tests.faulty_server import Faults


@pytest.mark.parametrize(("most_streams", "is_warned"), [(100, False), (10_000, True)])
def test_a_server_takes_as_many_as_it_may_and_says_where_they_are_few(corpus, make_server, most_streams, is_warned):
    with make_server(corpus.root, "--max-streams", most_streams, faults=Faults(descriptors=(256, 4096))) as server:
        assert resource.prlimit(server.pid, resource.RLIMIT_NOFILE) == (4096, 4096)
        assert ("may have 4096 files and connections open" in server.log()) == is_warned
