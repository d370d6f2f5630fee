"""Positions left out on purpose: what is left, cursors that go on across a skip, and those that cannot."""

import itertools
import re
from collections import Counter

import pytest

from packhorse.client import DigestMismatchError
from packhorse.client.loading.workers.start import context_of_workers
from packhorse.topology import Skips, Topology

SKIP = Skips.parse(["40:60", "100:103,7:8"])
EPOCH = {"seed": 3, "epoch": 2}


@pytest.fixture(params=["client", "embedded"])
def either(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def kept(client, bins_of_stream):
    """Function: the ids of every bin of an epoch of `rows` that some skips leave, in order."""

    def of(skip, **epoch):
        whole = bins_of_stream(client.stream_bins("rows", **(epoch or EPOCH)))
        return [one.ids for one in whole if not any(first <= one.position < end for first, end in skip.ranges)]

    return of


def test_streams_get_bins_and_locate_number_what_is_left(either, client, bins_of_stream, kept):
    info = client.get_dataset("rows")
    left = kept(SKIP)
    assert len(left) == info.num_bins - 24
    stream = either.stream_bins("rows", skip=SKIP, **EPOCH)
    assert [(one.position, one.ids) for one in bins_of_stream(stream)] == list(enumerate(left))
    assert stream.header.num_bins == len(left)
    assert stream.header.digest == f"{info.digest}+skip=7:8,40:60,100:103"
    assert stream.position_after(stream.header.num_steps - 1) == len(left)
    positions = [len(left) - 1, 0, 7, 39, 38]
    block = either.get_bins("rows", positions=positions, skip=SKIP, **EPOCH)
    assert block.positions.tolist() == positions
    assert [tuple(ids.tolist()) for ids, _ in block.bins()] == [left[position] for position in positions]
    where = {i: (position, index) for position, ids in enumerate(left) for index, i in enumerate(ids)}
    topology = Topology(world_size=2, batch_size=3)
    for location in either.locate("rows", ids=range(2000), topology=topology, skip=SKIP, **EPOCH):
        assert location.found
        assert (location.position, location.index_in_bin) == where.get(location.id, (-1, -1))
        if location.position < 0:
            assert location.step is location.rank is location.worker is location.slot is None
        elif location.position < len(left) // 6 * 6:
            assert location.step == location.position // 6
            assert (location.rank, location.slot) == divmod(location.position % 6, 3)


def test_a_server_and_embedded_give_the_same_bytes(client, embedded, joined):
    topology = Topology(world_size=2, workers_per_rank=2, batch_size=3, start_position=5)
    for mode, rank in itertools.product(("partition", "independent"), range(2)):
        shape = Topology(**{name: getattr(topology, name) for name in ("world_size", "batch_size")}, mode=mode)
        streams = [c.stream_bins("rows", rank=rank, topology=shape, skip=SKIP, **EPOCH) for c in (client, embedded)]
        assert joined(streams[0]) == joined(streams[1])
        assert streams[0].header == streams[1].header
    blocks = [c.get_bins("rows", positions=range(30, 50), skip=SKIP, **EPOCH) for c in (client, embedded)]
    assert joined(blocks[:1]) == joined(blocks[1:])
    asked = {"ids": range(0, 2000, 7), "topology": topology, "skip": SKIP, **EPOCH}
    assert client.locate("rows", **asked) == embedded.locate("rows", **asked)


def test_ranges_beyond_the_end_skip_nothing_and_all_may_be_skipped(either, kept):
    num_bins = either.get_dataset("rows").num_bins
    beyond = Skips.of([(num_bins, num_bins + 9)])
    assert either.stream_bins("rows", skip=beyond, **EPOCH).header.num_bins == num_bins
    everything = either.stream_bins("rows", skip=Skips.of([(0, num_bins + 9)]), **EPOCH)
    assert (everything.header.num_steps, list(everything)) == (0, [])


def test_a_cursor_goes_on_across_a_skip_that_begins_ahead_of_it(either, bins_of_stream, kept):
    """Ranges may be added at the cursor's position or behind it in the epoch; the position stays what it was."""
    digest = either.get_dataset("rows").digest
    for skip in (Skips.parse(["30:40"]), Skips.parse(["35:40,90:91"])):
        stream = either.stream_bins(
            "rows", topology=Topology(start_position=30), skip=skip, expected_digest=digest, **EPOCH
        )
        rest = [(one.position, one.ids) for one in bins_of_stream(stream)]
        assert rest == list(enumerate(kept(skip)))[30:]
        # and from there once more, across a range further on
        more = Skips.of([*skip.ranges, (200, 210)])
        again = either.stream_bins(
            "rows", topology=Topology(start_position=80), skip=more, expected_digest=stream.header.digest, **EPOCH
        )
        assert [(one.position, one.ids) for one in bins_of_stream(again)] == list(enumerate(kept(more)))[80:]
        without = either.stream_bins(
            "rows", topology=Topology(start_position=30), expected_digest=stream.header.digest, **EPOCH
        )
        assert without.header.digest == digest  # taken back before it was reached


@pytest.mark.parametrize(
    ("before", "now", "position"),
    [
        ("", "10:20", 30),  # added behind the cursor
        ("", "29:40", 30),  # begins one position behind it
        ("10:20", "", 30),  # taken back after it was reached
        ("10:20", "10:21", 11),  # grown behind it
        ("10:20,50:60", "10:20,45:60", 36),
    ],
)
def test_ranges_behind_a_cursor_must_stay_as_they_were(either, before, now, position):
    before, now = Skips.parse([before]), Skips.parse([now])
    begun = either.stream_bins("rows", skip=before, **EPOCH).header.digest
    stream = either.stream_bins(
        "rows", topology=Topology(start_position=position), skip=now, expected_digest=begun, **EPOCH
    )
    with pytest.raises(DigestMismatchError) as caught:
        next(stream)
    assert caught.value.metadata["differs"] == "skip"
    assert caught.value.metadata["expected"] == begun
    assert caught.value.metadata["actual"] == either.stream_bins("rows", skip=now, **EPOCH).header.digest != begun
    message = str(caught.value)
    assert f"this run has skipped the positions {before or 'none'} of dataset 'rows'" in message
    assert f"now {now or 'none'} are to be skipped" in message


def test_a_cursor_behind_all_that_a_new_range_leaves_is_told_of_the_range(either):
    num_bins = either.get_dataset("rows").num_bins
    end = Topology(start_position=num_bins)
    digest = either.stream_bins("rows", topology=end, **EPOCH).header.digest
    with pytest.raises(DigestMismatchError, match="skipped the positions none of dataset 'rows', now 7:8 are to be"):
        next(either.stream_bins("rows", topology=end, skip=Skips.parse(["7:8"]), expected_digest=digest, **EPOCH))


def test_a_step_of_a_run_counts_like_a_position(either):
    """`first_step` is where a run stands as well, and so is the middle of a balanced window."""
    digest = either.get_dataset("rows").digest
    plain = Topology(world_size=2, batch_size=5, start_position=20)
    windows = Topology(world_size=2, batch_size=5, start_position=20, accumulation=4, balance="micro-step")
    for topology, first_step, behind, ahead in (
        (plain, 3, "49:55", "50:55"),
        (windows, 4, "59:65", "60:65"),
        (windows, 5, "60:65", "100:105"),
        (windows, 7, "99:105", "100:105"),
        (windows, 8, "99:105", "100:105"),
    ):
        options = {"topology": topology, "first_step": first_step, "expected_digest": digest, **EPOCH}
        assert len(next(either.stream_bins("rows", skip=Skips.parse([ahead]), **options))) == 5
        with pytest.raises(DigestMismatchError, match=behind) as caught:
            next(either.stream_bins("rows", skip=Skips.parse([behind]), **options))
        assert caught.value.metadata["differs"] == "skip"


def test_by_position_ranges_before_the_last_position_count(either):
    digest = either.stream_bins("rows", skip=SKIP, **EPOCH).header.digest
    behind = SKIP.ranges[0][0]
    calls = (
        lambda **options: either.get_bins("rows", positions=[0, behind], **options),
        lambda **options: either.locate("rows", ids=[0], **options),
    )
    for call in calls:
        assert call(skip=SKIP, expected_digest=digest)
        with pytest.raises(DigestMismatchError, match="now none are to be skipped"):
            call(expected_digest=digest)
    assert len(either.get_bins("rows", positions=[0, behind - 1], expected_digest=digest)) == 2


def test_another_dataset_is_named_before_a_skip_is(either):
    digest = "-".join(["0" * 16] * 4) + "+skip=1:2"
    with pytest.raises(DigestMismatchError, match="counts, options, templates, pools differ"):
        next(either.stream_bins("rows", expected_digest=digest))


def test_batches_leave_out_what_is_skipped(make_dataset, sequences_of, kept, corpus):
    """As text for every epoch, as Skips, or for some epochs only."""

    def expected(skip, epoch):
        ids = itertools.chain(*kept(Skips.parse([skip]), seed=3, epoch=epoch))
        return Counter(tuple(corpus.sequences[i].tolist()) for i in ids)

    for skip in ("40:60,7:8", Skips.parse(["40:60,7:8"])):
        for epoch in (0, 1):
            dataset = make_dataset(epoch=epoch, skip=skip)
            batches = list(dataset)
            assert sequences_of(batches) == expected("40:60,7:8", epoch)
    dataset = make_dataset(skip={1: "40:60,7:8", 2: Skips.parse(["0:5"])})
    by_epoch = {epoch: list(dataset) for epoch in dataset.epochs(4)}
    for epoch, skip in enumerate(("", "40:60,7:8", "0:5", "")):
        assert sequences_of(by_epoch[epoch]) == expected(skip, epoch)
        digests = {batch["cursor"]["digest"] for batch in by_epoch[epoch]}
        assert all(digest.partition("+skip=")[2] == str(Skips.parse([skip])) for digest in digests)
    with pytest.raises(ValueError, match=r"skip '5' is not FIRST:END"):
        make_dataset(skip="5")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_s_cursor_goes_on_across_a_skip(make_dataset, load, sequences_of, kept, corpus, num_workers):
    """A run sees a spike, goes back to a checkpoint, and leaves out what comes next; once more, further on.

    This process has an open channel, so its workers must not be forked: gRPC aborted one that was.
    """
    came, cursor = [], None
    started = {"multiprocessing_context": context_of_workers(None)} if num_workers else {}
    for skip, num_batches in (("", 4), ("32:40", 6), ("32:40,120:150", 10**9)):
        dataset = make_dataset(skip=skip)
        if cursor is not None:
            dataset.load_state_dict(cursor)
        for batch in itertools.islice(load(dataset, num_workers, **started), num_batches):
            came.append(batch)
            cursor = batch["cursor"]
    ids = itertools.chain(*kept(Skips.parse(["32:40,120:150"]), seed=3, epoch=0))
    assert sequences_of(came) == Counter(tuple(corpus.sequences[i].tolist()) for i in ids)
    positions = [batch["cursor"]["position"] for batch in came]
    assert positions[:12] == list(range(8, 104, 8))


def test_a_batch_s_cursor_is_refused_where_a_range_behind_it_was_added(make_dataset):
    batches = list(make_dataset())
    dataset = make_dataset(skip="10:20")
    dataset.load_state_dict(batches[3]["cursor"])
    with pytest.raises(DigestMismatchError, match=re.escape("positions none of dataset 'rows', now 10:20")) as caught:
        next(iter(dataset))
    assert caught.value.metadata["differs"] == "skip"


def test_an_optimizer_step_that_has_begun_keeps_its_bins(make_dataset, sequences_of, whole):
    """Its other bins are already arranged: a range within it would change what is left of it."""
    balanced = {"balance": "optimizer-step", "accumulation": 4, "batch_size": 5}
    batches = list(make_dataset(**balanced))
    cursor = batches[5]["cursor"]
    assert (cursor["position"], cursor["steps_into_optimizer_step"]) == (20, 2)
    dataset = make_dataset(**balanced, skip="35:37")
    dataset.load_state_dict(cursor)
    with pytest.raises(DigestMismatchError, match=r"now 35:37"):
        next(iter(dataset))
    dataset = make_dataset(**balanced, skip="40:42")
    dataset.load_state_dict(cursor)
    skipped = make_dataset(batch_size=1)
    only = [batch for number, batch in enumerate(skipped) if number in (40, 41)]
    assert sequences_of(batches[:6]) + sequences_of(dataset) + sequences_of(only) == whole("rows")
