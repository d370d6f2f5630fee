"""Reading ahead: always the bins that were asked for, in few requests for a walk and without excess for jumps.

Rows made ahead are what they would be alone.
"""

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.client import BinBlock
from packhorse.client.loading.bins import _rows_ahead
from packhorse.client.loading.bins._read_ahead import ReadAhead
from packhorse.client.loading.bins._rows_ahead import RowsAhead

NUM_BINS = 5000


class Service:
    """Bins of two sequences each, whose ids tell the position; it writes down what it was asked for."""

    def __init__(self, tokens_of_ids=2):
        self.requests: list[list[int]] = []
        self._per_bin = tokens_of_ids

    def __call__(self, positions: Sequence[int]) -> BinBlock:
        self.requests.append(list(positions))
        asked = np.array(positions, dtype=np.int64)
        assert ((asked >= 0) & (asked < NUM_BINS)).all()
        ids = (asked[:, None] * self._per_bin + np.arange(self._per_bin)).ravel()
        ends = np.arange(1, len(asked) + 1) * self._per_bin
        return BinBlock(ids=ids, lengths=np.ones(len(ids), dtype=np.int32), bin_ends=ends, positions=asked)

    @property
    def num_bins(self):
        return sum(map(len, self.requests))


def assert_asked_for(block, positions, per_bin=2):
    assert block.positions.tolist() == list(positions)
    assert [ids.tolist() for ids, _ in block.bins()] == [[per_bin * p + i for i in range(per_bin)] for p in positions]


requests = st.lists(st.lists(st.integers(0, 200), min_size=1, max_size=6), min_size=1, max_size=40)


@given(requests)
def test_every_request_gets_its_bins_with_at_most_one_fetch(asked):
    service = Service()
    ahead = ReadAhead(service, NUM_BINS)
    for number, positions in enumerate(asked, 1):
        assert_asked_for(ahead.bins(positions), positions)
        assert len(service.requests) <= number


@pytest.mark.parametrize(("stride", "first"), [(1, 0), (8, 3), (1, 4000)])
def test_a_walk_makes_few_requests(stride, first):
    service = Service()
    ahead = ReadAhead(service, NUM_BINS)
    walk = list(range(first, NUM_BINS, stride))
    for position in walk:
        assert_asked_for(ahead.bins([position]), [position])
    assert len(service.requests) < 8 + len(walk) / 256
    assert service.num_bins < len(walk) + 1100  # at most a run too many at its ends


def test_a_workers_batches_with_those_of_others_between_are_a_walk():
    service = Service()
    ahead = ReadAhead(service, NUM_BINS)
    batches = [
        range(begin, begin + 8 * 3, 3) for begin in range(1, NUM_BINS - 24, 8 * 3 * 4)
    ]  # rank 1 of 3, of 4 workers
    for batch in batches:
        assert_asked_for(ahead.bins(batch), batch)
    assert len(service.requests) <= 8


def test_jumps_get_exactly_what_they_ask_for():
    service = Service()
    ahead = ReadAhead(service, NUM_BINS)
    jumps = random.Random(1).sample(range(NUM_BINS), 100)
    for first in range(0, 100, 4):
        assert_asked_for(ahead.bins(jumps[first : first + 4]), jumps[first : first + 4])
    assert service.num_bins == 100


def test_bins_of_many_sequences_are_read_ahead_in_small_runs():
    service = Service(tokens_of_ids=4000)
    ahead = ReadAhead(service, NUM_BINS)
    for position in range(20):
        ahead.bins([position])
    assert service.num_bins == 20


def test_threads_that_walk_share_their_requests():
    service = Service()
    ahead = ReadAhead(service, NUM_BINS)
    with ThreadPoolExecutor(8) as pool:
        blocks = list(pool.map(lambda position: ahead.bins([position]), range(2000)))
    for position, block in enumerate(blocks):
        assert_asked_for(block, [position])
    assert len(service.requests) < 60


def test_a_failed_request_is_raised_and_asked_again():
    class Failing(Service):
        def __call__(self, positions):
            if len(self.requests) == 1:
                self.requests.append([])
                raise OSError("away")
            return super().__call__(positions)

    ahead = ReadAhead(Failing(), NUM_BINS)
    ahead.bins([0])
    with pytest.raises(OSError, match="away"):
        ahead.bins([1])
    assert_asked_for(ahead.bins([1]), [1])


class Maker:
    """Makes rows of their index, and remembers what it was asked for."""

    def __init__(self):
        self.asked = []

    def __call__(self, indices):
        self.asked.append(list(indices))
        return [{"row": np.full(4, index)} for index in indices]


def test_a_walk_is_served_by_few_calls_in_any_step():
    for step in (1, 3):
        make = Maker()
        rows = RowsAhead(make, 300)
        for index in range(0, 300, step):
            assert rows.row(index)["row"].tolist() == [index] * 4
        made = [index for call in make.asked for index in call]
        assert sorted(made) == list(range(0, 300, step))
        assert len(make.asked) < len(made) / 5


def test_jumps_make_what_is_asked_for_alone():
    make = Maker()
    rows = RowsAhead(make, 1_000_000)
    jumps = np.random.default_rng(0).permutation(1_000_000)[:200].tolist()
    assert [rows.row(index)["row"][0] for index in jumps] == jumps
    assert make.asked == [[index] for index in jumps]


def test_threads_out_of_step_get_each_row_once_made_once():
    make = Maker()
    rows = RowsAhead(make, 640)
    got = [None] * 640

    def take(thread):
        for first in range(8 * thread, 640, 64):
            for index in range(first, first + 8):
                got[index] = int(rows.row(index)["row"][0])

    threads = [threading.Thread(target=take, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == list(range(640))
    made = [index for call in make.asked for index in call]
    assert len(made) < 2 * 640


def test_rows_that_nobody_takes_are_let_go(monkeypatch):
    monkeypatch.setattr(_rows_ahead, "_MOST_READY_BYTES", 10 * 32)
    rows = RowsAhead(Maker(), 1000)
    for first in range(0, 1000, 20):
        for index in range(first, first + 5):
            assert rows.row(index)["row"][0] == index
        assert len(rows._ready) <= 10


def test_long_rows_are_made_one_by_one(monkeypatch):
    monkeypatch.setattr(_rows_ahead, "_MOST_BYTES_AT_ONCE", 40)
    make = Maker()
    rows = RowsAhead(make, 100)
    assert [rows.row(index)["row"][0] for index in range(100)] == list(range(100))
    assert make.asked == [[index] for index in range(100)]


def test_an_error_is_raised_and_the_next_call_tries_again():
    make = Maker()
    fails = [True]

    def sometimes(indices):
        if fails.pop():
            fails.append(False)
            raise OSError("the store is away")
        fails.append(False)
        return make(indices)

    rows = RowsAhead(sometimes, 10)
    with pytest.raises(OSError, match="the store is away"):
        rows.row(3)
    assert rows.row(3)["row"][0] == 3
