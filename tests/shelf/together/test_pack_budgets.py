"""PackSequences under several budgets: no bin over any, whatever else is asked for; what is wrong is named."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.client._packing_answer import read_packing
from packhorse.client.errors import InvalidRequestError, VersionMismatchError
from packhorse.client.options import PackOptions
from packhorse.rollouts import Rollouts, pack_rollouts
from packhorse.v1 import packing_pb2 as pb


@pytest.fixture
def backend(embedded):
    return embedded._transport._backend


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_no_bin_is_over_a_cap(embedded, data):
    num = data.draw(st.integers(1, 60))
    numbers = st.integers(0, 6)
    lengths = np.array(data.draw(st.lists(st.integers(1, 40), min_size=num, max_size=num)))
    tiles, frames = (np.array(data.draw(st.lists(numbers, min_size=num, max_size=num))) for _ in range(2))
    groups = np.arange(num) // data.draw(st.integers(1, 3))
    are_grouped = data.draw(st.booleans())
    limit = None if are_grouped else data.draw(st.sampled_from([None, 1, 4]))
    caps = {"tiles": 20, "frames": 18}
    bins = embedded.pack_sequences(
        lengths,
        128,
        resources={"tiles": (tiles, caps["tiles"]), "frames": (frames, caps["frames"])},
        num_bins_multiple_of=data.draw(st.integers(1, 3)),
        packing=PackOptions(allow_empty=True, max_sequences_per_bin=limit),
        groups=groups if are_grouped else None,
        separate_by=groups % 2 if data.draw(st.booleans()) else None,
        seed=data.draw(st.sampled_from([None, 3])),
    )
    assert sorted(np.concatenate(bins).tolist()) == list(range(num))
    for one in bins:
        assert lengths[one].sum() <= 128
        assert tiles[one].sum() <= 20
        assert frames[one].sum() <= 18
        assert len(one) <= (limit or num)


def test_one_budget_that_nothing_takes_changes_no_number_of_bins(embedded):
    lengths = np.random.default_rng(0).integers(1, 900, 400)
    plain = embedded.pack_sequences(lengths, 1024)
    assert len(embedded.pack_sequences(lengths, 1024, resources={"tiles": (np.zeros(400, int), 1)})) == len(plain)


def test_rollouts_with_images_are_packed_under_both_budgets():
    draw = np.random.default_rng(1)
    tiles = draw.integers(0, 5, 40)
    rollouts = Rollouts(
        queries=[draw.integers(1, 9, 4 + int(number)).tolist() for number in tiles],
        responses=[draw.integers(1, 9, 3).tolist() for _ in tiles],
    )
    batches = pack_rollouts(rollouts, max_seq_len=64, pad_token_id=0, world_size=2, resources={"tiles": (tiles, 8)})
    assert len(batches) % 2 == 0
    assert all(tiles[batch["ids"].numpy()].sum() <= 8 for batch in batches)
    without = pack_rollouts(rollouts, max_seq_len=64, pad_token_id=0, world_size=2)
    assert any(tiles[batch["ids"].numpy()].sum() > 8 for batch in without)


@pytest.mark.parametrize(
    ("resources", "words", "field", "said"),
    [
        ({"tiles": ([1, 2], 4)}, {}, "budgets", "'tiles' has 2 amounts for 3 lengths"),
        ({"tiles": ([1, 2, 5], 4)}, {}, "budgets", "sequence 2 takes 5 of 'tiles', over its cap of 4"),
        ({"tiles": ([3, 2, 2], 4)}, {"groups": [1, 1, 2]}, "budgets", "group 1 takes 5 of 'tiles'"),
        ({"tiles": ([1, 1, 1], 0)}, {}, "the cap of 'tiles' in budgets", "the cap of 'tiles' in budgets"),
        ({"tiles": ([1, -1, 1], 4)}, {}, "resources", r"sequence 1 takes -1 of 'tiles', which is not in \[0, 2\^31\)"),
        ({"tiles": ([1, 1, 2**31], 4)}, {}, "resources", "sequence 2 takes 2147483648 of 'tiles'"),
        (
            {"tiles": ([1, 1, 1], None)},
            {},
            "resources",
            "the cap of 'tiles' must be an integer of at least 1, got None",
        ),
        ({"tiles": ([1, 1, 1], 4.5)}, {}, "resources", "the cap of 'tiles' must be an integer of at least 1, got 4.5"),
        (
            {"tokens": ([1, 1, 1], 4)},
            {},
            "resources",
            "'tokens' names no resource; take a text but 'tokens', whose cap",
        ),
        ({3: ([1, 1, 1], 4)}, {}, "resources", "3 names no resource"),
        ({"tiles": ([1, 1, 1],)}, {}, "resources", "must be a dict of name to"),
        ([1], {}, "resources", "must be a dict of name to"),
        ({"tiles": ([1, 1, 1], 4)}, {"packing": PackOptions(algorithm="optimal")}, "algorithm", "packed by 'best-fit'"),
        ({str(i): ([1, 1, 1], 4) for i in range(5)}, {}, "budgets", "at most 4 of distinct names"),
    ],
)
def test_wrong_resources_are_named(embedded, resources, words, field, said):
    with pytest.raises(InvalidRequestError, match=said) as caught:
        embedded.pack_sequences([4, 3, 5], 16, resources=resources, **words)
    assert caught.value.metadata["field"] == field


def test_a_server_that_ignores_budgets_is_noticed(backend):
    budget = pb.Budget(name="tiles", cap=2, amounts=[2, 2])
    answer = backend.pack_sequences(pb.PackSequencesRequest(lengths=[1, 1], max_seq_len=8))
    with pytest.raises(VersionMismatchError, match="too old for resources"):
        read_packing(answer, pb.PackSequencesRequest(lengths=[1, 1], max_seq_len=8, budgets=[budget]))
