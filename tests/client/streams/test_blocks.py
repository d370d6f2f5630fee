"""Blocks cut into blocks."""

import numpy as np
import pytest

from packhorse.client import BinBlock
from packhorse.client.streams._templates import KEPT_TEMPLATES, ReceivedTemplates, TemplateDefinitions


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


def test_templates_are_those_that_are_kept_and_those_of_the_message():
    """A message defines templates to keep and, beyond their number, some for itself, in one list of lengths."""

    def arrays(numbers, defined, lengths):
        return {
            "numbers": np.array(numbers, dtype=np.uint32),
            "num_sequences": sum(map(len, lengths)),
            "defined": TemplateDefinitions(
                numbers=np.array(list(defined), dtype=np.uint32),
                sizes=np.array([len(each) for each in defined.values()], dtype=np.uint32),
                lengths=np.array([n for each in defined.values() for n in each], dtype=np.int32),
                components=np.zeros(0, dtype=np.uint32),
            ),
        }

    def expand(numbers, defined, lengths):
        found, ends, _ = templates.expand(**arrays(numbers, defined, lengths))
        return [part.tolist() for part in np.split(found, ends[:-1])]

    templates, own = ReceivedTemplates(), KEPT_TEMPLATES
    first = {0: [5, 3], 2: [4, 2, 1], own: [7], own + 1: [6, 1]}
    wanted = [[7], [5, 3], [6, 1], [4, 2, 1], [5, 3]]
    assert expand([own, 0, own + 1, 2, 0], first, wanted) == wanted
    second = {1: [8], own: [2, 2]}  # what was a message's own is forgotten
    wanted = [[2, 2], [8], [4, 2, 1]]
    assert expand([own, 1, 2], second, wanted) == wanted
