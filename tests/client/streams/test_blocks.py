"""Blocks cut into blocks."""

import numpy as np
import pytest

from packhorse.client import BinBlock


def block_of(sizes, *, is_whole=True):
    total = sum(sizes)
    ids = np.arange(100, 100 + total)
    return BinBlock(
        ids=ids,
        lengths=np.arange(1, total + 1, dtype=np.int32),
        bin_ends=np.cumsum(sizes, dtype=np.int64),
        positions=np.arange(len(sizes)) + 7,
        first_tokens=None if is_whole else ids + 5,
        component_ids=None if is_whole else np.arange(len(sizes), dtype=np.int32) % 2,
    )


@pytest.mark.parametrize("sizes", [[], [3], [0, 0], [2, 0, 3, 1, 0], [1] * 8, [0, 4, 0, 0, 2, 2, 5]])
@pytest.mark.parametrize("num_bins", [1, 2, 3, 8, 100])
@pytest.mark.parametrize("is_whole", [True, False])
def test_parts_are_slices(sizes, num_bins, is_whole):
    block = block_of(sizes, is_whole=is_whole)
    parts = list(block.split(num_bins))
    slices = [block.slice(at, min(at + num_bins, len(sizes))) for at in range(0, len(sizes), num_bins)]
    assert len(parts) == len(slices)
    for part, expected in zip(parts, slices, strict=True):
        for name in BinBlock.__slots__:
            found, wanted = getattr(part, name), getattr(expected, name)
            assert (found is None) == (wanted is None), name
            if wanted is not None:
                np.testing.assert_array_equal(found, wanted, err_msg=name)
