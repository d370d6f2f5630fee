"""The gauge of waiting: bounded in number, measured at a scrape and once, gone with its dataset."""

import pytest

from packhorse.dataset import MixtureDataset, MixtureFile, open_prepared
from packhorse.epoch.balance import idle_share, waiting_of, waiting_of_plan
from packhorse.server.watching import waiting_gauge
from packhorse.server.watching.waiting_gauge import MOST_RUNS, WAITING_GAUGE, WaitingGauge
from packhorse.topology import Balance, Topology


@pytest.fixture
def opened(corpus):
    return [open_prepared(corpus.root / name) for name in ("rows", "named")]


@pytest.fixture
def gauge(opened):
    return WaitingGauge(lambda: opened)


@pytest.fixture
def measured(monkeypatch):
    """What was measured, in order."""
    calls = []

    def measuring(*arguments):
        calls.append(arguments[1])
        return waiting_of_plan(*arguments)

    monkeypatch.setattr(waiting_gauge, "waiting_of_plan", measuring)
    return calls


def samples(gauge):
    (family,) = gauge.collect()
    assert family.name == WAITING_GAUGE
    return [(sample.labels, sample.value) for sample in family.samples]


@pytest.mark.parametrize("balance", Balance)
def test_it_states_what_the_plan_makes_ranks_wait(gauge, opened, balance):
    topology = Topology(world_size=4, batch_size=2, accumulation=3, balance=balance, cost_linear=9)
    gauge.saw(opened[0], topology)
    expected = waiting_of_plan(opened[0].plan, topology)[balance]
    labels = {
        "dataset": "rows",
        "world_size": "4",
        "batch_size": "2",
        "accumulation": "3",
        "balance": balance.value,
    }
    assert samples(gauge) == [
        ({**labels, "wait": "step"}, idle_share(expected.at_steps)),
        ({**labels, "wait": "optimizer-step"}, idle_share(expected.at_optimizer_steps)),
    ]


def test_a_stream_measures_nothing_and_scrapes_measure_once(gauge, opened, measured):
    for _ in range(3):
        gauge.saw(opened[0], Topology(world_size=4))
    assert not measured
    assert len(samples(gauge)) == len(samples(gauge)) == 2
    gauge.saw(opened[0], Topology(world_size=4, workers_per_rank=8, start_position=5))  # the same run, elsewhere
    samples(gauge)
    assert len(measured) == 1
    gauge.saw(opened[0], Topology(world_size=4, cost_linear=1))
    samples(gauge)
    assert [topology.cost_linear for topology in measured] == [24_576, 1]


def test_the_runs_that_streamed_last_are_remembered(gauge, opened):
    for world_size in range(2, 2 + MOST_RUNS):
        gauge.saw(opened[0], Topology(world_size=world_size))
    gauge.saw(opened[0], Topology(world_size=2))
    gauge.saw(opened[0], Topology(world_size=99))
    kept = {int(labels["world_size"]) for labels, _ in samples(gauge)}
    assert kept == {2, *range(4, 2 + MOST_RUNS), 99}


def test_runs_go_with_their_dataset(gauge, opened):
    for dataset in opened:
        gauge.saw(dataset, Topology(world_size=2))
    assert {labels["dataset"] for labels, _ in samples(gauge)} == {"rows", "named"}
    del opened[0], dataset
    assert {labels["dataset"] for labels, _ in samples(gauge)} == {"named"}


def test_who_cannot_wait_is_not_shown(gauge, opened):
    gauge.saw(opened[0], Topology(world_size=1, accumulation=4))
    gauge.saw(opened[0], Topology(world_size=1 << 16, accumulation=4))  # more bins than the epoch has
    gauge.saw(opened[0], Topology(world_size=1 << 20, accumulation=4))  # more than can be balanced
    assert samples(gauge) == []


def test_each_size_of_a_schedule_is_a_run(opened):
    dataset, schedule = opened[0], "0:8 40:16 100:32 1000000:64"
    shape = {"world_size": 4, "accumulation": 2, "balance": Balance.MICRO_STEP}
    sizes_of = {0: [1, 2, 4], 60: [2, 4], 100: [4]}  # from this position on; the epoch never comes to the last stage
    assert dataset.manifest.n_bins < 1_000_000
    for position, sizes in sizes_of.items():
        own = WaitingGauge(lambda: opened)
        topology = Topology(batch_schedule=schedule, start_position=position, **shape)
        own.saw(dataset, topology.of_epoch(0, num_bins=dataset.manifest.n_bins, max_seq_len=256))
        found = {(int(labels["batch_size"]), labels["wait"]): value for labels, value in samples(own)}
        assert sorted({size for size, _ in found}) == sizes
        for size in sizes:
            plain = waiting_of_plan(dataset.plan, Topology(batch_size=size, **shape))[Balance.MICRO_STEP]
            assert found[size, "step"] == idle_share(plain.at_steps)
            assert found[size, "optimizer-step"] == idle_share(plain.at_optimizer_steps)


def test_a_long_schedule_leaves_the_size_that_a_run_has_now(gauge, opened):
    gauge.saw(opened[1], Topology(world_size=2))
    stages = " ".join(f"{2 * number}:{2 * number + 2}" for number in range(3 * MOST_RUNS))
    for topology in (Topology(world_size=2, batch_schedule=stages), Topology(world_size=4)):
        gauge.saw(opened[0], topology)
    found = {(labels["dataset"], int(labels["world_size"]), int(labels["batch_size"])) for labels, _ in samples(gauge)}
    assert {("rows", 2, 1), ("rows", 4, 1)} <= found
    assert len(found) <= MOST_RUNS


def test_a_mixture_is_measured_under_its_last_stage(corpus, gauge, opened):
    stages = "[[stages]]\nuntil_bins = 65\nweights = {rows = 1}\n[[stages]]\nweights = {rows = 1, named = 1}"
    text = f"epoch_bins = 64\n{stages}"
    mixture = MixtureDataset("mixed", MixtureFile.parse(text, "mixed"), opened)
    topology = Topology(world_size=4, batch_size=2)
    gauge.saw(mixture, topology)
    expected = waiting_of(mixture.epoch(2, seed=0), topology)[topology.balance]
    values = [(labels["dataset"], labels["wait"], value) for labels, value in samples(gauge)]
    assert values == [
        ("mixed", "step", idle_share(expected.at_steps)),
        ("mixed", "optimizer-step", idle_share(expected.at_optimizer_steps)),
    ]
    opened.pop()
    assert not samples(gauge)
