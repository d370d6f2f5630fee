"""Batch sizes by the run's position: the closed forms against an oracle that counts the steps out as lists."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.topology import BatchPhase, BatchSchedule, RemainderPolicy, Topology


def steps_counted_out(topology, phases, *, before, num_bins):
    """Every step as a list of positions, and for every optimizer step where it begins; the last step may be short.

    `phases` are (first bin of the run, global batch size), and `before` the bins of the epochs before.
    """
    steps, windows = [], []
    position = topology.start_position
    while position < num_bins:
        size = [size for begin, size in phases if begin <= before + position][-1]
        windows.append((len(steps), position))
        for _ in range(topology.accumulation):
            per_step = size // topology.accumulation
            if position < num_bins:
                steps.append(list(range(position, min(position + per_step, num_bins))))
            position += per_step
    return steps, windows


@given(st.data())
@settings(max_examples=300)
def test_steps_and_positions_counted_out(scheduled, data):
    num_bins, epoch = data.draw(st.integers(0, 60)), data.draw(st.integers(0, 3))
    topology, phases = data.draw(scheduled(num_bins, epochs=4))
    of_epoch = topology.of_epoch(epoch, num_bins=num_bins, max_seq_len=8)
    steps, windows = steps_counted_out(topology, phases, before=epoch * num_bins, num_bins=num_bins)
    sizes = [
        [size for begin, size in phases if begin <= epoch * num_bins + at][-1] // topology.accumulation
        for first, at in windows
        for _ in range(topology.accumulation)
    ]
    full = [step for step, size in zip(steps, sizes, strict=False) if len(step) == size]
    dropped = topology.remainder is RemainderPolicy.DROP
    num_steps = len(full) if dropped else len(steps)
    assert of_epoch.num_steps(num_bins) == num_steps
    assert of_epoch.num_full_steps(num_bins) == len(full)
    assert of_epoch.num_tail_bins(num_bins) == (len(steps[-1]) if len(full) < len(steps) else 0)
    assert of_epoch.num_bins_dropped(num_bins) == (len(steps[-1]) if dropped and len(full) < len(steps) else 0)
    for step, positions in enumerate(steps[:num_steps]):
        stretch = of_epoch.stretch_of(step)
        assert topology.start_position + stretch.offset_of(step) == positions[0]
        assert stretch.bins_per_step == sizes[step] == stretch.batch_size * topology.world_size
        assert of_epoch.stretch_at(positions[0] - topology.start_position) == stretch
        if step + 1 == num_steps:
            wanted, into = num_bins, 0
        else:
            first, wanted = [window for window in windows if window[0] <= step + 1][-1]
            into = step + 1 - first
        assert (of_epoch.position_after(step, num_bins), of_epoch.steps_into_optimizer_step(step, num_bins)) == (
            wanted,
            into,
        )
    divided = [(step, each.batch_size) for each, own in of_epoch.by_stretch(range(num_steps)) for step in own]
    assert divided == [(step, sizes[step] // topology.world_size) for step in range(num_steps)]
    assert of_epoch.num_rank_bins(range(num_steps)) == sum(size for _, size in divided)


@given(st.data())
@settings(max_examples=200)
def test_a_resumed_run_takes_the_steps_that_are_left(scheduled, data):
    """From any optimizer step on, and under any number of ranks that divides the sizes."""
    num_bins = data.draw(st.integers(1, 60))
    topology, phases = data.draw(scheduled(num_bins))
    steps, windows = steps_counted_out(topology, phases, before=0, num_bins=num_bins)
    first, position = data.draw(st.sampled_from(windows or [(0, topology.start_position)]))
    smaller = data.draw(st.sampled_from([n for n in range(1, 13) if topology.world_size % n == 0]))
    shape = {"world_size": smaller, "accumulation": topology.accumulation, "remainder": topology.remainder}
    later = Topology(batch_schedule=topology.batch_schedule, start_position=position, **shape)
    later = later.of_epoch(0, num_bins=num_bins, max_seq_len=8)
    begins = [position + later.stretch_of(step).offset_of(step) for step in range(later.num_steps(num_bins))]
    wanted = [step[0] for step in steps[first:]]
    assert begins == wanted[: len(begins)]
    assert later.num_bins_dropped(num_bins) or len(begins) == len(wanted)


def test_nothing_is_left_after_the_last_step():
    """Of 12 bins the step of 9 leaves 3, which are dropped; the phase that begins there would make a step of them."""
    topology = Topology(
        world_size=3, accumulation=2, batch_schedule="0:6 1:18 2:6", start_position=1, remainder=RemainderPolicy.DROP
    )
    assert (topology.num_steps(13), topology.num_bins_dropped(13)) == (1, 3)
    position = topology.position_after(0, 13)
    assert position == 13
    assert replace(topology, start_position=position).num_steps(13) == 0


@pytest.mark.parametrize(
    ("text", "phases"),
    [
        ("0:768 250B:1536", [(0, False, 768), (250 * 10**9, True, 1536)]),
        ("0:8, 1.5K:16, 2M:24", [(0, False, 8), (1500, True, 16), (2_000_000, True, 24)]),
        ("0K:8 100K:4 1t:2", [(0, True, 8), (100_000, True, 4), (10**12, True, 2)]),
        ("0:1 10:2 20:3", [(0, False, 1), (10, False, 2), (20, False, 3)]),
    ],
)
def test_texts(text, phases):
    schedule = BatchSchedule.parse(text)
    assert [tuple(phase) for phase in schedule.phases] == phases
    assert BatchSchedule.parse(str(schedule)).of_epoch(0, num_bins=9, max_seq_len=1) == schedule.of_epoch(
        0, num_bins=9, max_seq_len=1
    )
    assert Topology(batch_schedule=text).batch_schedule == schedule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5:8", r"^batch_schedule '5:8' must begin with a phase at 0"),
        ("0:8 20:4 10:2", r"^batch_schedule .* has phases that do not ascend"),
        (
            "0:8 1K:4 1000M",
            r"^batch_schedule has a phase '1000M', which is not BEGIN:SIZE: BEGIN in bins, or in tokens",
        ),
        ("0:8 x:4", "^batch_schedule has a phase 'x:4'"),
        ("0:8 10:1.5", "^batch_schedule has a phase '10:1.5'"),
        ("0:8 1.0001K:4", "^batch_schedule has a phase '1.0001K:4'"),
        ("0:8 nanK:4", "^batch_schedule has a phase 'nanK:4'"),
        ("0:8 infB:4", "^batch_schedule has a phase 'infB:4'"),
        ("0:0", "^batch_schedule: a phase's global batch size must be an integer of at least 1, got 0"),
        ("0:8 -5:4", "^batch_schedule: where a phase begins must be an integer of at least 0, got -5"),
        ("eight:" + "x" * 100_000, "^batch_schedule has a phase 'eight:x"),
    ],
)
def test_bad_texts_are_named(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        Topology(batch_schedule=text)
    assert len(str(caught.value)) < 300


def test_tokens_count_full_bins_as_megatron_does():
    schedule = BatchSchedule.parse("0:768 250B:1536")
    assert schedule.of_epoch(0, num_bins=10**9, max_seq_len=4096).phases[1].begin == 250 * 10**9 // 4096
    with pytest.raises(ValueError, match=r"4K is 1 bins of 2048 tokens, and the phase before it begins at 5"):
        BatchSchedule.parse("0:8 5:4 4K:2").of_epoch(0, num_bins=10, max_seq_len=2048)
    with pytest.raises(ValueError, match="ask of_epoch"):
        Topology(batch_schedule="0:8 1K:4").num_steps(9)


def test_sizes_divide_among_ranks_where_they_are_still_needed():
    shape = Topology(world_size=3, accumulation=2, batch_schedule="0:8 24:12 100:10")
    with pytest.raises(
        ValueError, match="batch_schedule 8, from position 0 on, does not divide among world_size 3 times"
    ):
        shape.num_steps(60)
    behind = Topology(world_size=3, accumulation=2, batch_schedule="0:8 24:12", start_position=24)
    assert [(each.batch_size, each.bins_per_step) for each in behind.stretches] == [(2, 6)]
    with pytest.raises(
        ValueError, match="batch_schedule 10, from position 100 on"
    ):  # epochs before anything goes wrong
        Topology(world_size=3, accumulation=2, batch_schedule="0:12 100:10").num_steps(60)


def test_independent_ranks_share_no_global_batch():
    with pytest.raises(ValueError, match="batch_schedule cannot be given where mode is independent"):
        Topology(mode="independent", batch_schedule="0:8 10:16")


def test_a_schedule_needs_a_phase():
    with pytest.raises(ValueError, match="must begin with a phase at 0"):
        BatchSchedule(())
    assert BatchSchedule((BatchPhase(0, False, 4),)).sizes == (4,)
