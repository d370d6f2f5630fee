"""Reading ahead: always the bins that were asked for, in few requests for a walk and without excess for jumps."""

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.client import BinBlock
from packhorse.client.loading._read_ahead import ReadAhead

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
