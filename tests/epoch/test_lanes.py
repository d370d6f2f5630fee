"""The instructions that kernels write with, beside plain slices."""

import numba
import numpy as np
import pytest

from packhorse.epoch import EpochView
from packhorse.epoch.draws import BLOCK
from packhorse.epoch.permutation import Permutation
from packhorse.epoch.plan_index import PlanIndex
from packhorse.epoch.seeds import derive_key
from packhorse.epoch.vector_instructions import LANES, WIDE_LANES, copy_lanes, count_lanes, fill_lanes, prefetch


@numba.njit
def _write(filled, counted, index, value):
    fill_lanes(filled, index, value)
    count_lanes(counted, index, value)
    prefetch(filled, index)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.uint64])
def test_lanes_are_written_and_nothing_beside_them(dtype):
    filled, counted = np.zeros((2, 3 * LANES), dtype=dtype)
    _write(filled, counted, np.uint64(5), np.uint64(70))
    lanes = slice(5, 5 + LANES)
    assert (filled[lanes] == 70).all()
    assert counted[lanes].tolist() == list(range(70, 70 + LANES))
    for array in (filled, counted):
        array[lanes] = 0
        assert not array.any()


@numba.njit
def _copy(values, index, array, to):
    copy_lanes(values, index, array, to)


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.uint32, np.int64])
def test_lanes_are_copied_and_nothing_beside_them(dtype):
    values, array = np.arange(3 * WIDE_LANES, dtype=dtype), np.zeros(3 * WIDE_LANES, dtype=dtype)
    _copy(values, np.uint64(7), array, np.uint64(5))
    assert array[5 : 5 + WIDE_LANES].tolist() == list(range(7, 7 + WIDE_LANES))
    array[5 : 5 + WIDE_LANES] = 0
    assert not array.any()


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("copies", [1, LANES - 1, LANES, LANES + 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_templates_of_any_number_of_copies(copies, wide):
    """Draws fill blocks that begin and end anywhere in a bin."""
    seed, epoch, num_bins = 3, 1, 3
    counts = {1: copies * num_bins, 2: num_bins}
    plan = PlanIndex.build({(2, *[1] * copies): num_bins}, counts, copies + 2)
    pool = np.arange(plan.pool_size, dtype=np.uint32)
    view = EpochView(plan, pool, seed=seed, epoch=epoch, first_tokens=pool[::-1].copy(), wide=wide)
    bins = view.bins(np.arange(num_bins))
    numbers = Permutation(num_bins, derive_key(seed, epoch, "bins")).forward(np.arange(num_bins))
    key = derive_key(seed, epoch, "pool")
    ones, twos = (Permutation(count, key, tweak=length) for length, count in counts.items())
    wanted = [
        [counts[1] + twos(number), *ones.forward(number * copies + np.arange(copies)).tolist()]
        for number in numbers.tolist()
    ]
    assert [ids.tolist() for ids in np.split(bins.ids, bins.bin_ends[:-1])] == wanted
    assert bins.lengths.tolist() == [2, *[1] * copies] * num_bins
    assert bins.first_tokens is not None
    assert (bins.first_tokens == plan.pool_size - 1 - bins.ids).all()
