"""Streams are counted over all processes, and those of a dead one are given back."""

import pytest

from packhorse.server.lanes.stream_limit import SharedStreamLimit, StreamLimit, make_shared_limit


@pytest.fixture
def shared(tmp_path):
    """Function: the limit of three processes, as one of them sees it."""
    path = tmp_path / "streams"
    make_shared_limit(path, 3)
    return lambda slot: SharedStreamLimit(4, path, slot)


def test_one_process_counts_alone():
    limit = StreamLimit(2)
    assert [limit.take() for _ in range(4)] == [True, True, False, False]
    limit.give_back()
    assert [limit.take(), limit.take(), limit.most, limit.num_open] == [True, False, 2, 2]


def test_all_processes_count_together(shared):
    first, second, third = (shared(slot) for slot in range(3))
    assert [limit.take() for limit in (first, second, third, first, second, third)] == [True] * 4 + [False] * 2
    second.give_back()
    assert [third.take(), second.take()] == [True, False]
    assert [first.num_open, second.num_open, third.num_open] == [2, 0, 2]


def test_streams_of_a_process_that_died_are_given_back(shared):
    alive, dying = shared(0), shared(1)
    assert [alive.take(), dying.take(), dying.take(), dying.take(), alive.take()] == [True] * 4 + [False]
    shared(1).clear()
    assert [alive.take() for _ in range(4)] == [True] * 3 + [False]
