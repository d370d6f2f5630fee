"""Which sequences of bins are redacted, against a plain loop over them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.dataset import MASKED, Redaction, SkipEntry, Takedown, TakedownError, TakedownFile
from packhorse.epoch import Bins
from packhorse.topology import Skips

NAMES = ("web", "code", "chat")
NUM_BINS = 12

ids = st.lists(st.integers(0, 30), min_size=1, max_size=8).map(lambda some: np.unique(np.array(some, dtype=np.int64)))
redactions = st.lists(
    st.builds(
        Redaction,
        ids=ids,
        token=st.none() | st.integers(0, 5),
        component=st.sampled_from(NAMES),
        seed=st.none() | st.sampled_from([1, 2]),
        from_position=st.integers(0, 3 * NUM_BINS),
    ),
    max_size=4,
).map(tuple)
skips = st.lists(st.tuples(st.integers(0, NUM_BINS), st.integers(1, 4)), max_size=2).map(
    lambda pairs: Skips.of((first, first + size) for first, size in pairs).within(NUM_BINS)
)


@st.composite
def some_bins(draw, num_left):
    sizes = draw(st.lists(st.integers(0, 4), max_size=num_left))
    positions = draw(st.permutations(range(num_left)))[: len(sizes)]
    positions = [-1 if draw(st.booleans()) and position == num_left - 1 else position for position in positions]
    return Bins(
        ids=np.array(draw(st.lists(st.integers(0, 30), min_size=sum(sizes), max_size=sum(sizes))), dtype=np.uint32),
        lengths=np.ones(sum(sizes), dtype=np.int32),
        bin_ends=np.cumsum(sizes, dtype=np.int64),
        positions=np.array(positions, dtype=np.int64),
        component_ids=np.array([draw(st.integers(0, 2)) if size else -1 for size in sizes], dtype=np.int32),
    )


@given(redactions, redactions, skips, st.sampled_from([None, 1, 2, 3]), st.integers(0, 2), st.data())
def test_each_sequence_is_taken_away_as_the_last_redaction_that_names_it_says(own, of_web, skips, seed, epoch, data):
    of_web = tuple(Redaction(ids=each.ids, token=each.token, seed=1, from_position=10**6) for each in of_web)
    files = {"web": TakedownFile(of_web), "code": TakedownFile(), "chat": TakedownFile()}
    takedown = Takedown.of_mixture(TakedownFile(own), files)
    left = [position for position in range(NUM_BINS) if not any(a <= position < b for a, b in skips.ranges)]
    bins = data.draw(some_bins(len(left)))
    expected = []
    for number, (end, size) in enumerate(zip(bins.bin_ends, bins.sizes(), strict=True)):
        position = bins.positions[number]
        whole = NUM_BINS - 1 if position < 0 else left[position]
        for entry in range(end - size, end):
            token = None
            for each in of_web if bins.component_ids[number] == 0 else ():
                if bins.ids[entry] in each.ids:
                    token = MASKED if each.token is None else each.token
            for each in own:
                was_before = seed is not None and each.seed == seed and epoch * NUM_BINS + whole < each.from_position
                if (
                    NAMES[bins.component_ids[number]] == each.component
                    and bins.ids[entry] in each.ids
                    and not was_before
                ):
                    token = MASKED if each.token is None else each.token
            if token is not None:
                expected.append((entry, token))
    found = takedown.redacted(bins, epoch=epoch, seed=seed, num_bins=NUM_BINS, skips=skips)
    came = [] if found is None else list(zip(found.entries.tolist(), found.tokens.tolist(), strict=True))
    assert came == expected


def test_a_component_is_named_where_there_are_components():
    with pytest.raises(TakedownError, match=r"redact\[0\].component must be one of web, code, got 'wb'"):
        Takedown.of_mixture(
            TakedownFile((Redaction(ids=np.array([1]), component="wb"),)),
            {"web": TakedownFile(), "code": TakedownFile()},
        )
    with pytest.raises(TakedownError, match="this is not a mixture"):
        Takedown.of_dataset(TakedownFile((Redaction(ids=np.array([1]), component="web"),)))


def test_what_says_nothing_takes_nothing_away():
    assert not Takedown()
    assert Takedown().digest == ""
    assert Takedown.of_dataset(TakedownFile((Redaction(ids=np.array([1])),))).digest
    only_skips = Takedown.of_dataset(TakedownFile(skips=(SkipEntry(positions=Skips.parse(["1:2"])),)))
    assert only_skips
    assert not only_skips.digest


def test_a_redaction_begins_at_its_own_position_and_counts_what_is_skipped():
    """Of one sequence in every bin: from position 5, where 2 and 3 are skipped, so from the fourth bin that is left."""
    bins = Bins(
        ids=np.full(8, 7, dtype=np.uint32),
        lengths=np.ones(8, dtype=np.int32),
        bin_ends=np.arange(1, 9),
        positions=np.arange(8),
    )
    takedown = Takedown.of_dataset(TakedownFile((Redaction(ids=np.array([7]), seed=1, from_position=5),)))
    whole = takedown.redacted(bins, epoch=0, seed=1, num_bins=10, skips=Skips())
    assert whole is not None
    assert whole.entries.tolist() == [5, 6, 7]
    left = takedown.redacted(bins, epoch=0, seed=1, num_bins=10, skips=Skips.of([(2, 4)]).within(10))
    assert left is not None
    assert left.entries.tolist() == [3, 4, 5, 6, 7]
    takedown = Takedown.of_dataset(TakedownFile((Redaction(ids=np.array([7]), seed=1, from_position=4),)))
    first = takedown.redacted(bins, epoch=0, seed=1, num_bins=10, skips=Skips.of([(2, 4)]).within(10))
    assert first is not None
    assert first.entries.tolist() == [2, 3, 4, 5, 6, 7], "the bin behind the gap is at position 4"
