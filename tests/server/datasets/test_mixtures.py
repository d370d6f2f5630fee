"""Mixtures as they are served: the same as in this process, under every topology, and while stages are appended."""

import gc
import threading
import weakref
from contextlib import nullcontext

import numpy as np
import pytest
from tests.server.mixtures import bins_of, bins_of_blocks, in_process, make_root

from packhorse.client import DigestMismatchError, RemainderPolicy, RetryPolicy, Skips, Topology, connect
from packhorse.client.errors import DatasetCorruptError, DatasetNotFoundError, InvalidRequestError
from packhorse.dataset import StageEntry, append_to_mixture
from packhorse.dataset.files import _kept_epochs
from packhorse.epoch import SkipSource, derive_key
from packhorse.server.datasets.lazy_catalog import LazyCatalog
from packhorse.server.datasets.mixtures import Mixtures

ONCE = RetryPolicy(deadline_seconds=0)


@pytest.fixture(scope="module")
def root(corpus, tmp_path_factory):
    return make_root(corpus, tmp_path_factory.mktemp("mixtures"))


@pytest.fixture(scope="module")
def staged(root):
    return in_process(root, "staged")


@pytest.fixture(scope="module")
def client(root, make_server):
    with make_server(root) as server, connect(server.target, timeout_seconds=20) as client:
        yield client


@pytest.fixture(scope="module")
def embedded(root):
    with connect(f"embedded:{root}") as client:
        yield client


@pytest.mark.parametrize("epoch", [0, 1, 5])
@pytest.mark.parametrize("skip", [Skips(), Skips.parse(["3:40,208:213"])])
def test_a_served_mixture_is_the_one_in_this_process(client, embedded, staged, epoch, skip):
    source = SkipSource(staged.epoch(epoch, 7), skip)
    expected = bins_of(source)
    every = np.arange(source.num_bins)
    for each in (client, embedded):
        assert bins_of_blocks([each.get_bins("staged", epoch=epoch, seed=7, positions=every, skip=skip)]) == expected
        with each.stream_bins("staged", epoch=epoch, seed=7, skip=skip) as stream:
            assert bins_of_blocks(stream) == expected
            assert stream.header.digest.startswith(staged.manifest.digest)


def test_the_last_epoch_is_the_one_whose_positions_fit(client, embedded, staged):
    last = 2**63 // staged.num_bins - 1
    for each in (client, embedded):
        assert len(each.get_bins("staged", epoch=last, positions=[0, staged.num_bins - 1])) == 2
        for ask in (
            lambda one: one.get_bins("staged", epoch=last + 1, positions=[0]),
            lambda one: one.locate("staged", ids=[0], epoch=last + 1),
            lambda one: next(iter(one.stream_bins("staged", epoch=last + 1))),
        ):
            with pytest.raises(InvalidRequestError, match=f"epoch must be an integer in .0, {last}."):
                ask(each)


@pytest.mark.parametrize("balance", ["none", "micro-step"])
@pytest.mark.parametrize("remainder", ["spread", "drop", "repeat", "empty"])
def test_the_streams_of_a_topology_are_the_whole_epoch(client, staged, balance, remainder):
    topology = Topology(
        world_size=3, workers_per_rank=2, batch_size=2, balance=balance, accumulation=2, remainder=remainder
    )
    expected = staged.epoch(1, 7)
    came = []
    for rank in range(3):
        for worker in range(2):
            with client.stream_bins("staged", epoch=1, seed=7, rank=rank, worker=worker, topology=topology) as stream:
                came += list(stream)
    pairs = [pair for block in came for pair in _pairs(block, topology.remainder)]
    whole = _pairs(expected.bins(np.arange(expected.num_bins)), None)
    if topology.remainder is RemainderPolicy.DROP:
        whole = _pairs(expected.bins(np.arange(expected.num_bins // 6 * 6)), None)
    assert sorted(pairs) == sorted(whole)


def _pairs(bins, remainder):
    """(dataset, id) of all sequences; copies left out."""
    sizes = np.diff(bins.bin_ends, prepend=0)
    own = np.repeat((bins.positions >= 0) | (remainder is not RemainderPolicy.REPEAT), sizes)
    datasets = np.repeat(bins.component_ids, sizes)
    return list(zip(datasets[own].tolist(), bins.ids[own].tolist(), strict=True))


def test_a_run_rescales_across_the_border_of_two_stages(client, staged):
    expected = bins_of(staged.epoch(1, 7))
    two, three = Topology(world_size=2, batch_size=4), Topology(world_size=3, batch_size=5, start_position=160)
    first = [client.stream_bins("staged", epoch=1, seed=7, rank=rank, topology=two) for rank in range(2)]
    digest = first[0].header.digest
    came = bins_of_blocks(block for stream in first for block in _up_to(stream, 20))
    then = (
        client.stream_bins("staged", epoch=1, seed=7, rank=rank, topology=three, expected_digest=digest)
        for rank in range(3)
    )
    came = {position: one for position, one in came.items() if position < 160}
    later = bins_of_blocks(block for stream in then for block in stream)
    assert min(later) == 160
    # SPREAD halves bins of the last step, which is not full
    full = 160 + (500 - 160) // 15 * 15
    assert {**came, **{p: one for p, one in later.items() if p < full}} == {
        position: one for position, one in expected.items() if position < full
    }


def test_epochs_of_components_are_kept_within_a_bound(root, monkeypatch):
    monkeypatch.setattr(_kept_epochs, "MORE_EPOCHS", 3)
    mixture, free = in_process(root, "staged"), in_process(root, "rows")
    made = []
    for seed in range(20):
        component = mixture.mixture(seed).components[0]
        made += [weakref.ref(component.source_of(epoch)) for epoch in range(2)]
        assert component.source_of(1) is made[-1]()
        expected = free.epoch(1, seed=derive_key(seed, 0, "component")).bins(range(5))
        assert component.source_of(1).bins(range(5)).ids.tolist() == expected.ids.tolist()
    gc.collect()
    of_two_runs, of_no_run = 2, 1  # epoch 0 of the last run is among the 3 made last
    assert sum(each() is not None for each in made) == of_two_runs + of_no_run


def test_two_runs_at_once_find_their_epochs_again(root, monkeypatch):
    """Each had pushed the other's out."""
    monkeypatch.setattr(_kept_epochs, "MORE_EPOCHS", 1)
    mixture = in_process(root, "staged")
    runs = [mixture.mixture(seed).components for seed in (1, 2)]
    for epoch in range(2):
        first = [component.source_of(epoch) for run in runs for component in run]
        again = [component.source_of(epoch) for run in runs for component in run]
        assert all(one is other for one, other in zip(first, again, strict=True))


def _up_to(stream, step):
    for block in stream:
        yield block
        if block.steps[-1] >= step:
            return


def test_ids_are_located_in_every_component_and_each_time_that_they_come(client, staged):
    source = staged.epoch(5, 7)
    bins = source.bins(np.arange(source.num_bins))
    sizes = bins.sizes()
    wanted = int(bins.ids[0])
    places = [
        (staged.datasets[dataset].name, position)
        for dataset, position, ids in zip(
            bins.component_ids, bins.positions.tolist(), np.split(bins.ids, bins.bin_ends[:-1]), strict=True
        )
        if wanted in ids
    ]
    found = client.locate("staged", epoch=5, seed=7, ids=[wanted, -1], topology=Topology(world_size=2))
    assert sizes.min() > 0
    assert sorted((each.component, each.position) for each in found if each.position not in (None, -1)) == sorted(
        places
    )
    assert [each.found for each in found if each.id == -1] == [False]
    for each in found:
        if each.step is not None:
            assert each.step * 2 + each.rank == each.position


def test_a_mixture_is_described_with_its_components_and_stages(client, staged):
    info = client.get_dataset("staged")
    assert [component.name for component in info.components] == ["rows", "named", "truncated"]
    assert info.components[2].digest == client.get_dataset("truncated").digest
    assert [(stage.first_position, stage.digest) for stage in info.stages] == list(staged.chain)
    assert info.stages[0].shares == ("7/10", "3/10", "0")
    assert (info.num_bins, info.max_seq_len, info.digest) == (500, 384, staged.manifest.digest)
    assert info in client.list_datasets()
    assert client.get_dataset("rows").components == ()


def test_the_audit_tells_which_epochs_came_and_how_often(client):
    proof = pytest.importorskip("packhorse.proof")
    info = client.get_dataset("staged")
    topology = Topology(world_size=2, batch_size=3, workers_per_rank=2, remainder="repeat")
    report = proof.EpochOfStreams(client=client, dataset=info, epoch=1, seed=7, topology=topology).audit()
    assert report.problems == []
    rows, named, truncated = report.components
    assert (rows.component.first_epoch, rows.component.first_position) == divmod(350, rows.component.num_bins)
    assert sum(each.bins for each in report.components) == 500
    assert report.sequences == sum(each.sequences for each in report.components)
    assert named.sequences == sum(times * num for times, num in named.times.items())
    assert max(named.times) > 1
    assert truncated.epochs.startswith("0.00 to ")


def test_what_runs_out_leaves_its_share_to_the_others(own_root, make_server):
    proof = pytest.importorskip("packhorse.proof")
    (own_root / "spent.mixture.toml").write_text(
        'when_out = "reweigh"\n[[stages]]\nweights = {rows = 1, named = 5}\n[components.named]\nepochs = 2\n'
    )
    with make_server(own_root) as server, connect(server.target, timeout_seconds=20) as client:
        info = client.get_dataset("spent")
        rows, named = info.components
        assert info.num_bins == rows.num_bins + 2 * named.num_bins
        topology = Topology(world_size=2, batch_size=3, remainder="repeat")
        report = proof.EpochOfStreams(client=client, dataset=info, epoch=1, seed=7, topology=topology).audit()
        assert report.problems == []
        assert [set(each.times) for each in report.components] == [{1}, {2}]
        assert [each.component.first_epoch for each in report.components] == [1, 2]
        assert info.num_sequences == rows.num_sequences + 2 * named.num_sequences


@pytest.fixture
def own_root(corpus, tmp_path):
    return make_root(corpus, tmp_path)


def _append(root, position, weights):
    return append_to_mixture(
        root / "staged.mixture.toml", StageEntry(weights=weights), position, LazyCatalog(root, set()).get
    )


def _read_while_appending(client, root, num_bins, append_at, balance):
    """Appends a stage behind the first block of two ranks of epoch 2, and compares what comes with the new mixture."""
    topology = Topology(world_size=2, batch_size=2, balance=balance, accumulation=3)
    streams = [client.stream_bins("staged", epoch=2, seed=7, rank=rank, topology=topology) for rank in range(2)]
    came = [next(stream) for stream in streams]
    old = streams[0].header.digest
    _append(root, 2 * num_bins + append_at, {"rows": 1, "truncated": 9})
    for stream in streams:
        came += list(stream)
    after = in_process(root, "staged")
    assert {stream.header.digest for stream in streams} == {after.manifest.digest} != {old}
    assert bins_of_blocks(came) == bins_of(after.epoch(2, 7))
    return after


@pytest.mark.parametrize("balance", ["none", "optimizer-step"])
def test_a_stage_is_appended_while_streams_are_read(own_root, balance):
    before = in_process(own_root, "staged")
    with connect(f"embedded:{own_root}") as client:
        after = _read_while_appending(client, own_root, 500, 310, balance)
    same, changed = (
        [bins_of(each.epoch(2, 7), some) for each in (before, after)] for some in (range(310), range(310, 500))
    )
    assert same[0] == same[1]
    assert changed[0] != changed[1]


def test_a_stage_is_appended_while_a_server_streams(own_root, make_server):
    path = own_root / "staged.mixture.toml"
    path.write_text(path.read_text().replace("epoch_bins = 500", "epoch_bins = 40000"))
    with make_server(own_root) as server, connect(server.target, timeout_seconds=20) as client:
        _read_while_appending(client, own_root, 40_000, 39_001, "none")


def test_a_run_beyond_the_new_stage_is_refused_with_the_position_where_they_part(own_root):
    with connect(f"embedded:{own_root}") as client:
        with client.stream_bins("staged", epoch=2, seed=7) as stream:
            digest = stream.header.digest
        _append(own_root, 2 * 500 + 300, {"rows": 1})
        now = client.get_dataset("staged").digest
        assert now.startswith(digest)

        def resumed(position):
            topology = Topology(start_position=position)
            with client.stream_bins("staged", epoch=2, seed=7, topology=topology, expected_digest=digest) as stream:
                return next(stream)

        assert resumed(300).positions.tolist() == [300]
        with pytest.raises(DigestMismatchError, match="departs at position 300 of epoch 2") as caught:
            resumed(301)
        assert caught.value.metadata == {
            "expected": digest,
            "actual": now,
            "dataset": "staged",
            "differs": "stages",
            "departs": "1300",
        }
        assert len(client.get_bins("staged", epoch=2, positions=[0, 299], expected_digest=digest)) == 2
        with pytest.raises(DigestMismatchError):
            client.get_bins("staged", epoch=2, positions=[0, 300], expected_digest=digest)
        with pytest.raises(DigestMismatchError, match="from the beginning"):
            client.get_bins("staged", positions=[0], expected_digest=client.get_dataset("rows").digest)


WRONG = {
    "syntax": ("[[stages", "syntax.mixture.toml is not TOML"),
    "field": ("[[stages]]\nweighs = {rows = 1}", r"stages\[0\]\.weighs is no field here; did you mean weights"),
    "missing": (
        "[[stages]]\nweights = {rows = 1, books = 1}",
        r"missing\.mixture\.toml: no dataset is named 'books'; this server has: .*named",
    ),
    "nested": ("[[stages]]\nweights = {staged = 1}", "staged is a mixture itself; name its components"),
    "zero": ("[[stages]]\nweights = {rows = 0}", "weights are all 0"),
    "bytes": (b"\xff\xfe", "is not text in UTF-8"),
}


def test_a_wrong_file_costs_nothing_but_itself(own_root, make_server, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "x.toml"
    outside.write_text("[[stages]]\nweights = {rows = 1}")
    (own_root / "led.mixture.toml").symlink_to(outside)
    for name, (text, _) in WRONG.items():
        path = own_root / f"{name}.mixture.toml"
        path.write_bytes(text) if isinstance(text, bytes) else path.write_text(text)
    (own_root / "rows.mixture.toml").write_text("[[stages]]\nweights = {named = 1}")  # a dataset has that name
    right = ["named", "rows", "staged", "truncated"]
    with make_server(own_root) as server:
        leads_out = pytest.raises(DatasetCorruptError, match="a link that leads out of the data root")
        with connect(server.target, retry=ONCE) as client, leads_out:
            client.get_dataset("led")
        for target, names in ((server.target, right), (f"embedded:{own_root}", ["led", *right])):
            with connect(target, retry=ONCE) as client:
                assert [info.name for info in client.list_datasets()] == names
                for name, (_, message) in WRONG.items():
                    with pytest.raises(DatasetCorruptError, match=message) as caught:
                        client.get_dataset(name)
                    assert str(own_root) not in str(caught.value)
                with pytest.raises(DatasetNotFoundError, match="staged"):
                    client.get_dataset("stagde")
                assert client.get_dataset("rows").components == ()
                for outside in ("../staged", "/etc/passwd", ".hidden", "a\0b"):
                    with pytest.raises(DatasetNotFoundError):
                        client.get_dataset(outside)
        log = server.log()
        assert (
            "mixture field: dataset 'field' is not served: field.mixture.toml, line 2: stages[0].weighs is no field"
            in log
        )
        assert log.count("field.mixture.toml") == 1


def test_a_file_that_turns_wrong_changes_nothing_but_the_log(own_root, caplog):
    catalog = Mixtures(LazyCatalog(own_root, set()))
    mixture = catalog.get("staged")
    path = own_root / "staged.mixture.toml"
    right = path.read_text()
    path.write_text("[[stages]]\nweights = {rows = -1}")
    assert catalog.get("staged") is catalog.get("staged") is mixture
    assert catalog.is_current(mixture)
    assert caplog.text.count("weights.rows must be a number of at least 0") == 1
    path.write_text(right + "# looked at")
    assert catalog.get("staged") is mixture
    path.write_text(right.replace("70", "71"))
    changed = catalog.get("staged")
    assert changed.manifest.digest != mixture.manifest.digest
    assert not catalog.is_current(mixture)
    path.unlink()
    assert catalog.is_current(changed)
    assert "staged" not in catalog.names()


def test_the_log_tells_once_of_a_mixture_that_a_dataset_hides(own_root, caplog):
    (own_root / "rows.mixture.toml").write_text("[[stages]]\nweights = {named = 1}")
    catalog = Mixtures(LazyCatalog(own_root, set()))
    for _ in range(2):
        assert "rows" in catalog.names()
    assert caplog.text.count("mixture rows: a dataset has that name and is served instead; rename one of them") == 1


@pytest.mark.parametrize("position", [900, 1400])
def test_the_log_tells_of_a_change_behind_an_open_stream(own_root, caplog, position):
    with connect(f"embedded:{own_root}") as client, client.stream_bins("staged", epoch=2, seed=7) as stream:
        next(stream)
        _append(own_root, position, {"rows": 1})
        with pytest.raises(DigestMismatchError) if position < 1000 else nullcontext():
            assert list(stream)
    late = f"mixture staged changes from position {position} of the run, and a stream has come to position"
    assert (late in caplog.text) == (position < 1000)


def test_threads_that_ask_at_once_get_the_same_mixture(own_root):
    catalog = Mixtures(LazyCatalog(own_root, set()))
    found = []
    threads = [threading.Thread(target=lambda: found.append(catalog.get("staged"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len({id(each) for each in found}) == 1
