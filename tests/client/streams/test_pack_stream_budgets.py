"""PackStream under several budgets: no bin over any, every sequence once, also over a server that is killed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.client import connect
from packhorse.client.errors import InvalidRequestError
from packhorse.packing import OnlinePacker, vector_bound

DRAW = np.random.default_rng(5)
NUM = 3000
TILES = np.where(DRAW.random(NUM) < 0.3, 0, DRAW.integers(1, 13, NUM))
LENGTHS = 64 * TILES + DRAW.integers(8, 700, NUM)
OPTIONS = {"max_seq_len": 4096, "resources": {"tiles": 40}}


def check(bins):
    for ids, lengths in bins:
        assert (lengths == LENGTHS[ids]).all()
        assert lengths.sum() <= 4096
        assert TILES[ids].sum() <= 40


def send_all(stream, groups=None, on_message=lambda number: None):
    bins = []
    for number, first in enumerate(range(0, NUM, 250)):
        ids = np.arange(first, first + 250)
        of_ids = None if groups is None else groups[ids]
        bins += stream.send(ids, LENGTHS[ids], of_ids, amounts={"tiles": TILES[ids]})
        on_message(number)
    return bins + stream.flush()


@pytest.mark.parametrize("grouped", [False, True])
def test_every_sequence_comes_once_and_no_bin_is_over_a_cap(embedded, grouped):
    groups = np.arange(NUM) // 2 if grouped else None
    with embedded.pack_stream(**OPTIONS, lookahead_sequences=400) as stream:
        bins = send_all(stream, groups)
    check(bins)
    assert sorted(np.concatenate([ids for ids, _ in bins]).tolist()) == list(range(NUM))
    bound = vector_bound(np.stack((LENGTHS, TILES), axis=1), np.ones(NUM, dtype=np.int64), np.array([4096, 40]))
    assert len(bins) <= (1.1 if grouped else 1.05) * bound
    if grouped:
        bin_of = {int(id): number for number, (ids, _) in enumerate(bins) for id in ids}
        assert all(bin_of[first] == bin_of[first + 1] for first in range(0, NUM, 2))


def test_ranks_get_equally_many_bins(embedded):
    with embedded.pack_stream(**OPTIONS, num_bins_multiple_of=7, accumulation=2, balance="optimizer-step") as stream:
        bins = send_all(stream)
    check(bins)
    assert len(bins) % 7 == 0


def test_a_killed_server_loses_none(corpus, make_server):
    with make_server(corpus.root) as server, connect(server.target) as client:

        def kill(number):
            if number == 5:
                server.kill()
                server.start()

        with client.pack_stream(**OPTIONS, lookahead_sequences=300) as stream:
            bins = send_all(stream, on_message=kill)
    check(bins)
    assert sorted(np.concatenate([ids for ids, _ in bins]).tolist()) == list(range(NUM))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_packer_holds_its_caps_and_its_limit(data):
    num = data.draw(st.integers(1, 50))
    lengths, first, second = (
        data.draw(st.lists(st.integers(low, 20), min_size=num, max_size=num)) for low in (1, 0, 0)
    )
    limit = data.draw(st.sampled_from([None, 2]))
    packer = OnlinePacker(50, lookahead_sequences=5, max_sequences_per_bin=limit, caps=(25, 30))
    bins = []
    for number in range(num):
        bins += packer.add_group([number], [lengths[number]], [(first[number], second[number])])
    bins += packer.flush()
    assert sorted(id for one in bins for id in one.ids) == list(range(num))
    for one in bins:
        assert sum(one.lengths) <= 50
        assert sum(first[id] for id in one.ids) <= 25
        assert sum(second[id] for id in one.ids) <= 30
        assert len(one.ids) <= (limit or num)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({}, "must have a list for each resource of the stream: tiles"),
        ({"amounts": {"frames": [1, 1]}}, "must have a list for each resource of the stream: tiles"),
        ({"amounts": {"tiles": [1]}}, "holds 1 of 'tiles' for 2 ids"),
        ({"amounts": {"tiles": [1, 41]}}, r"of 'tiles' must be in \[0, 40\], its cap"),
        ({"amounts": {"tiles": [1, -1]}}, r"of 'tiles' must be in \[0, 40\], its cap"),
        ({"groups": [1, 1], "amounts": {"tiles": [30, 11]}}, "it takes 41 of a resource of which a bin holds 40"),
    ],
)
def test_wrong_amounts_are_named_and_none_is_kept(embedded, words, said):
    with embedded.pack_stream(**OPTIONS) as stream:
        with pytest.raises(InvalidRequestError, match=said):
            stream.send([1, 2], [5, 6], **words)
        assert stream.num_held == 0
        assert len(stream.send([1], [5], amounts={"tiles": [1]}) + stream.flush()) == 1


def test_a_stream_without_resources_takes_no_amounts(embedded):
    with embedded.pack_stream(max_seq_len=8) as stream, pytest.raises(InvalidRequestError, match="stream: none"):
        stream.send([1], [5], amounts={"tiles": [1]})
