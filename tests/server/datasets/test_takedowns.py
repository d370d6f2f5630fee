"""What is taken away by file while a server runs: what is taken, what is refused, and that streams go on."""

import re
import signal
from collections import Counter

import numpy as np
import pytest
from tests.server.mixtures import make_root

import packhorse.server.datasets.taken_away.takedowns
from packhorse.client import DigestMismatchError, Skips, Topology, connect
from packhorse.client.errors import DatasetCorruptError
from packhorse.client.streams.blocks import AS_IT_IS, MASKED
from packhorse.server.base.faults import ServiceError
from packhorse.server.datasets.catalog import Catalog
from packhorse.server.datasets.lazy_catalog import LazyCatalog
from packhorse.server.datasets.mixtures import Mixtures
from packhorse.server.methods.backend import Backend
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import PLAIN_WIRE_VERSION


@pytest.fixture
def root(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(packhorse.server.datasets.taken_away.takedowns, "FRESH_SECONDS", 0)
    return make_root(corpus, tmp_path / "root")


@pytest.fixture
def client(root):
    with connect(f"embedded:{root}") as client:
        yield client


def take_away(root, name, text):
    path = root / f"{name}.takedown.toml"
    partial = root / ".partial"
    partial.write_text(text)
    partial.replace(path)


def redacted(blocks):
    """(component, id) → token, of every sequence that is redacted."""
    found = {}
    for block in blocks:
        if block.redactions is not None:
            datasets = block.component_of_sequences()
            for i in np.flatnonzero(block.redactions != AS_IT_IS).tolist():
                found[None if datasets is None else int(datasets[i]), int(block.ids[i])] = int(block.redactions[i])
    return found


def whole(client, name, **options):
    with client.stream_bins(name, seed=7, **options) as stream:
        return list(stream)


def test_redacted_sequences_keep_their_bins_and_positions(root, client, joined):
    before = joined(whole(client, "rows"))
    digest = client.stream_bins("rows", seed=7).header.digest
    take_away(root, "rows", "[[redact]]\nids = [3, 500]\n[[redact]]\nids = [500, 9]\ntoken = 4")
    blocks = whole(client, "rows", expected_digest=digest)
    assert joined(blocks) == before
    assert redacted(blocks) == {(None, 3): MASKED, (None, 500): 4, (None, 9): 4}
    header = client.stream_bins("rows", seed=7).header
    info = client.get_dataset("rows")
    assert header.digest == f"{digest}+redact={info.takedown.digest}"
    assert info.digest == digest
    assert [str(each) for each in info.takedown.redactions] == ["2 ids masked", "2 ids replaced by token 4"]
    by_position = client.get_bins("rows", seed=7, positions=range(info.num_bins), expected_digest=digest)
    assert redacted([by_position]) == redacted(blocks)


def test_a_run_that_had_come_so_far_is_as_it_was_before_that(root, client):
    wanted = 77
    position = client.locate("rows", seed=7, epoch=1, ids=[wanted])[0].position
    from_position = client.get_dataset("rows").num_bins + position
    for first, is_redacted in ((from_position, True), (from_position + 1, False)):
        take_away(root, "rows", f"[[redact]]\nids = [{wanted}]\nseed = 7\nfrom_position = {first}")
        assert bool(redacted(whole(client, "rows", epoch=1))) == is_redacted
        assert not redacted(whole(client, "rows", epoch=0))
        assert redacted(whole(client, "rows", epoch=2))
        with client.stream_bins("rows", seed=8) as stream:
            assert redacted(stream)


def test_positions_that_a_file_skips_are_left_out_as_those_of_a_request(root, client, joined):
    proof = pytest.importorskip("packhorse.proof")
    skip = Skips.parse(["5:9,30:31"])
    wanted = joined(whole(client, "rows", epoch=1, skip=Skips.parse(["2:3,5:9,30:31"])))
    other_epoch = joined(whole(client, "rows", epoch=2))
    take_away(root, "rows", f'[[skip]]\npositions = "{skip}"\nepoch = 1')
    assert joined(whole(client, "rows", epoch=1, skip=Skips.parse(["2:3"]))) == wanted
    assert joined(whole(client, "rows", epoch=2)) == other_epoch
    with client.stream_bins("rows", seed=7, epoch=1) as stream:
        assert stream.header.skipped == skip
        assert stream.header.digest.endswith("+skip=5:9,30:31")
    report = proof.EpochOfStreams(
        client=client,
        dataset=client.get_dataset("rows"),
        epoch=1,
        seed=7,
        topology=Topology(),
        skip=Skips.parse(["6:7"]),
    ).audit()
    assert report.problems == []
    assert {name: each.bins for name, each in report.left_out.items()} == {"skip": 1, "rows.takedown.toml": 4}


def test_what_no_trainer_got_is_told_apart_by_component(root, client):
    proof = pytest.importorskip("packhorse.proof")
    take_away(
        root, "staged", '[[skip]]\npositions = "40:60"\nepoch = 1\n[[redact]]\ncomponent = "rows"\nids = [3, 4, 5]'
    )
    info, topology = client.get_dataset("staged"), Topology(world_size=3, batch_size=8)
    streams = proof.EpochOfStreams(client=client, dataset=info, epoch=1, seed=7, topology=topology, until=300)
    report = streams.audit()
    assert report.problems == []
    assert {name: each.bins for name, each in report.left_out.items()} == {"staged.takedown.toml": 20, "until": 180}
    positions = [*range(40), *range(60, 320)]
    trained = client.get_bins("staged", epoch=1, seed=7, positions=positions, is_whole=True)
    of_sequences = trained.component_of_sequences()
    assert report.masked == (trained.redactions == MASKED).sum() > 0
    for number, each in enumerate(report.components):
        ids = trained.ids[of_sequences == number].tolist()
        assert each.bins == (trained.component_ids == number).sum()
        assert each.bins + each.bins_left_out == each.component.num_taken
        assert each.tokens == trained.lengths[of_sequences == number].sum()
        assert each.times == Counter(Counter(ids).values())
        assert sum(times * num for times, num in each.whole_times.items()) == len(ids) + each.sequences_left_out


@pytest.mark.parametrize("remainder", ["spread", "repeat"])
def test_an_audit_counts_redactions_by_component(root, client, remainder):
    proof = pytest.importorskip("packhorse.proof")
    take_away(
        root,
        "staged",
        f"""
        [[redact]]
        component = "rows"
        ids = {list(range(600))}
        [[redact]]
        component = "truncated"
        ids = {list(range(0, 400, 3))}
        [[redact]]
        component = "rows"
        ids = {list(range(500, 900))}
        token = 4
        """,
    )
    info = client.get_dataset("staged")
    block = client.get_bins("staged", seed=7, epoch=1, positions=range(info.num_bins))
    came = list(zip(block.component_of_sequences().tolist(), block.redactions.tolist(), strict=True))
    topology = Topology(world_size=7, batch_size=11, remainder=remainder)
    report = proof.EpochOfStreams(client=client, dataset=info, epoch=1, seed=7, topology=topology).audit()
    assert report.problems == []
    assert [(each.masked, each.replaced) for each in report.components] == [
        (came.count((number, MASKED)), came.count((number, 4))) for number in range(3)
    ]
    names = [each.component.name for each in report.components]
    assert [name for name, each in zip(names, report.components, strict=True) if each.masked] == ["rows", "truncated"]
    assert [name for name, each in zip(names, report.components, strict=True) if each.replaced] == ["rows"]
    assert report.masked == sum(each.masked for each in report.components)
    assert report.replaced == sum(each.replaced for each in report.components)
    assert (report.repeated > 0) == (remainder == "repeat")


def test_an_open_stream_goes_on_with_what_was_taken_away(root, client, joined):
    expected = whole(client, "rows")
    with client.stream_bins("rows", seed=7) as stream:
        first = [next(stream), next(stream)]
        take_away(root, "rows", f"[[redact]]\nids = {list(range(2000))}")
        rest = list(stream)
        assert stream.header.digest.startswith(f"{client.get_dataset('rows').digest}+redact=")
    assert joined(first + rest) == joined(expected)
    assert not redacted(first)
    assert len(redacted(rest)) == sum(len(block.ids) for block in rest)


def test_a_first_file_that_is_wrong_or_comes_too_late_ends_no_stream(root, client, caplog, joined):
    expected = whole(client, "rows")
    with client.stream_bins("rows", seed=7) as stream:
        blocks = [next(stream), next(stream)]
        take_away(root, "rows", "[[redact]]\nids = 3")
        blocks.append(next(stream))
        assert "line 2: redact[0].ids: must be a list of ids" in caplog.text
        take_away(root, "rows", '[[skip]]\npositions = "0:1"')
        blocks += stream
        assert "has passed the positions 0:1 of epoch 0" in caplog.text
    assert joined(blocks) == joined(expected)


def test_the_log_tells_of_a_redaction_that_a_stream_has_gone_past(root, client, caplog):
    with client.stream_bins("rows", seed=7) as stream:
        next(stream)
        for seed, from_position, is_late in ((8, 0, False), (7, 300, False), (7, 1, True)):
            caplog.clear()
            take_away(root, "rows", f"[[redact]]\nids = [3]\nseed = {seed}\nfrom_position = {from_position}")
            next(stream)
            late = f"from_position = {from_position}, and a stream has come to position "
            assert (late in caplog.text) == is_late


def test_positions_behind_an_open_stream_stay(root, client, caplog, joined):
    """The old file stays in force, until the stream ends."""
    take_away(root, "rows", "[[redact]]\nids = [3]")
    with client.stream_bins("rows", seed=7, epoch=1) as stream:
        blocks = [next(stream) for _ in range(3)]
        reached = int(blocks[-1].positions[-1]) + 1
        take_away(root, "rows", f'[[skip]]\npositions = "{reached - 1}:{reached}"')
        blocks.append(next(stream))
        assert re.search(r"a stream has come to position \d+ of epoch 1 of the run of seed 7", caplog.text)
        assert [record.levelname for record in caplog.records].count("ERROR") == 1
        assert client.get_dataset("rows").takedown.redactions
        late = client.get_dataset("rows").num_bins - 20
        take_away(root, "rows", f'[[skip]]\npositions = "{late}:{late + 9}"')  # epoch 0 lies behind
        assert client.get_dataset("rows").takedown.redactions
        take_away(root, "rows", f'[[skip]]\npositions = "{late}:{late + 9}"\nepoch = 1')
        assert not client.get_dataset("rows").takedown.redactions
        blocks += stream
    assert joined(blocks) == joined(whole(client, "rows", epoch=1))
    take_away(root, "rows", '[[skip]]\npositions = "0:1"')
    assert client.get_dataset("rows").takedown.skips[0].positions == Skips.parse(["0:1"])


def test_a_cursor_behind_new_skips_is_refused_and_one_before_them_is_not(root, client):
    digest = client.stream_bins("rows", seed=7).header.digest
    take_away(root, "rows", '[[skip]]\npositions = "5:9"')
    for position in (0, 5):
        assert whole(client, "rows", topology=Topology(start_position=position), expected_digest=digest)
    with pytest.raises(DigestMismatchError, match="ranges before the cursor must stay"):
        whole(client, "rows", topology=Topology(start_position=6), expected_digest=digest)


def test_a_mixture_takes_what_its_components_lose_and_what_its_file_says(root, client):
    take_away(root, "rows", "[[redact]]\nids = [3]\nseed = 7\nfrom_position = 100000\n[[skip]]\npositions = '0:50'")
    take_away(root, "staged", "[[redact]]\ncomponent = 'named'\nids = [4, 3]\ntoken = 1")
    came = redacted(whole(client, "staged", epoch=5))
    assert set(came.items()) <= {((0, 3), MASKED)}  # no id of `named` is 3 or 4
    names = client.get_dataset("staged").takedown.redactions
    assert [(each.component, each.num_ids, each.seed) for each in names] == [("rows", 1, None), ("named", 2, None)]
    take_away(root, "staged", "[[redact]]\ncomponent = 'named'\nids = [4]\n[[redact]]\nids = [5]\n")
    assert client.get_dataset("staged").takedown.redactions == names


@pytest.mark.parametrize("name", ["rows", "staged"])
def test_a_wrong_file_is_refused_and_what_was_stays(root, client, caplog, name):
    component = "component = 'rows'\n" if name == "staged" else ""
    take_away(root, name, f"[[redact]]\n{component}ids = [3]")
    before = client.get_dataset(name)
    for text, message in (
        ("[[redact]]\nids = [3]\nactoin = 3", "line 3: redact[0].actoin"),
        ("[[redact]]\nids = [3]\ncomponent = 'x'", "component"),
        ("\x00", "is not TOML"),
        ("[[redact]]\nids_file = 'gone.txt'", "line 2: redact[0].ids_file: gone.txt cannot be read"),
    ):
        caplog.clear()
        take_away(root, name, text)
        assert client.get_dataset(name) == before
        assert client.get_dataset(name) == before
        assert message in caplog.text
        assert caplog.text.count("stays in force") == 1
    (root / f"{name}.takedown.toml").unlink()
    assert client.get_dataset(name) == before
    assert "is gone" in caplog.text
    take_away(root, name, "")
    assert client.get_dataset(name).takedown is None


def test_what_was_never_right_is_not_served_and_everything_else_is(root, client, caplog):
    take_away(root, "rows", "[[redact]]\nids = 3")
    with pytest.raises(DatasetCorruptError, match=r"rows.takedown.toml, line 2: redact\[0\].ids"):
        whole(client, "rows")
    with pytest.raises(DatasetCorruptError, match=r"rows.takedown.toml, line 2"):
        whole(client, "staged")
    assert [info.name for info in client.list_datasets()] == ["named", "truncated"]
    assert "rows.takedown.toml, line 2" in caplog.text
    take_away(root, "rows", "[[redact]]\nids = [3]")
    assert redacted(whole(client, "rows"))
    assert len(client.list_datasets()) == 4


def test_troubles_are_told_as_long_as_they_last(root):
    mixtures = Mixtures(Catalog(root))
    names = mixtures.names()
    assert {"rows", "staged"} < set(names)
    assert mixtures.troubles() == {}
    take_away(root, "truncated", "[[redact]]\nids = [3]")
    mixtures.names()
    mixture = root / "staged.mixture.toml"
    whole = mixture.read_text()
    (root / "truncated.takedown.toml").write_text("nonsense")
    take_away(root, "named", "nonsense")
    mixture.write_text("nonsense")
    assert mixtures.names() == names, "what was said before stays in force"
    kinds = {("takedown", "truncated"), ("takedown", "named"), ("mixture", "staged")}
    assert mixtures.troubles().keys() == kinds
    restarted = Mixtures(Catalog(root))
    assert set(names) - set(restarted.names()) >= {"truncated", "named", "staged"}
    assert restarted.troubles().keys() == kinds
    take_away(root, "truncated", "[[redact]]\nids = [3, 4]")
    take_away(root, "named", "")
    mixture.write_text(whole)
    for each in (mixtures, restarted):
        assert each.names() == names
        assert each.troubles() == {}


def test_a_file_of_ids_is_read_again_when_it_changes(root, client):
    (root / "ids.txt").write_text("3")
    take_away(root, "rows", "[[redact]]\nids_file = 'ids.txt'")
    assert redacted(whole(client, "rows")) == {(None, 3): MASKED}
    (root / "ids.txt").write_text("3, 14")
    assert redacted(whole(client, "rows")) == {(None, 3): MASKED, (None, 14): MASKED}


def test_a_link_that_leads_nowhere_is_not_taken_for_no_file(root, client):
    (root / "rows.takedown.toml").symlink_to(root / "elsewhere.toml")
    with pytest.raises(DatasetCorruptError, match=r"rows\.takedown\.toml cannot be read, or is a link"):
        whole(client, "rows")
    take_away(root, "elsewhere", "[[redact]]\nids = [3]")
    (root / "elsewhere.takedown.toml").rename(root / "elsewhere.toml")
    assert redacted(whole(client, "rows"))


def test_links_out_of_the_root_are_refused(root, tmp_path):
    (tmp_path / "secret").write_text("3")
    (root / "ids.txt").symlink_to(tmp_path / "secret")
    take_away(root, "rows", "[[redact]]\nids_file = 'ids.txt'")
    from packhorse.server.datasets.catalog import Catalog

    mixtures = Mixtures(Catalog(root))
    with pytest.raises(ServiceError, match=r"ids\.txt is a link that leads out of the data root"):
        mixtures.takedown(mixtures.get("rows"))


def test_a_root_that_is_a_dataset_has_its_file_beside_it(root):
    take_away(root, "rows", "[[redact]]\nids = [3]")
    with connect(f"embedded:{root / 'rows'}") as client:
        assert redacted(whole(client, "rows")) == {(None, 3): MASKED}


def test_independent_streams_are_redacted_from_their_beginning(root, client):
    take_away(root, "rows", "[[redact]]\nids = [3]\nseed = 7\nfrom_position = 100000000")
    assert not redacted(whole(client, "rows"))
    assert redacted(whole(client, "rows", topology=Topology(mode="independent")))


@pytest.mark.parametrize("remainder", ["spread", "drop", "repeat", "empty"])
@pytest.mark.parametrize("balance", ["none", "micro-step"])
def test_every_topology_redacts_alike(root, client, remainder, balance):
    take_away(root, "rows", f"[[redact]]\nids = {list(range(0, 2000, 3))}\ntoken = 2")
    topology = Topology(world_size=3, batch_size=4, workers_per_rank=2, remainder=remainder, balance=balance)
    for rank in range(3):
        for worker in range(2):
            for block in whole(client, "rows", topology=topology, rank=rank, worker=worker):
                redactions = np.full(len(block.ids), AS_IT_IS) if block.redactions is None else block.redactions
                assert (redactions == np.where(block.ids % 3, AS_IT_IS, 2)).all()


def test_an_older_client_is_refused_where_something_is_taken_away(root):
    backend = Backend(Mixtures(LazyCatalog(root, set())))
    requests = (
        lambda: next(
            backend.stream_bins(
                pb.StreamBinsRequest(dataset="rows", wire_version=PLAIN_WIRE_VERSION, topology=_topology())
            )
        ),
        lambda: backend.get_bins(pb.GetBinsRequest(dataset="rows", positions=[0], wire_version=PLAIN_WIRE_VERSION)),
    )
    for ask in requests:
        assert ask()
    take_away(root, "rows", "[[redact]]\nids = [3]")
    for ask in requests:
        with pytest.raises(
            ServiceError, match="has something taken away by file, on which the client would train"
        ) as caught:
            ask()
        assert caught.value.reason == pb.ERROR_REASON_VERSION_MISMATCH


def _topology():
    return pb.Topology(
        world_size=1,
        workers_per_rank=1,
        batch_size=1,
        remainder=pb.REMAINDER_POLICY_SPREAD,
        mode=pb.STREAM_MODE_PARTITION,
        balance=pb.BALANCE_NONE,
        accumulation=1,
    )


def test_the_log_warns_once_of_ids_that_are_not_there(root, caplog):
    mixtures = Mixtures(LazyCatalog(root, set()))

    def warned(name, text):
        caplog.clear()
        take_away(root, name, text)
        mixtures.takedown(mixtures.get(name))
        mixtures.warn_of_unknown_ids()
        return [record.getMessage() for record in caplog.records if "no such sequence" in record.getMessage()]

    assert warned("rows", "[[redact]]\nids = [3, 4]") == []
    edited = "[[redact]]\nids = [3, 4]\n[[redact]]\nids = [2001, 5, 2000]"
    assert warned("rows", edited) == [
        "rows.takedown.toml: redact[1] names ids 2000, 2001, and there is no such sequence; `packhorse redact rows "
        "--check` looks at every id"
    ]
    assert warned("rows", f"{edited}\n[[redact]]\nids = [7]") == []
    (told,) = warned("staged", "[[redact]]\ncomponent = 'truncated'\nids = [399, 400]")
    assert "redact[0] names ids 400, and" in told


def test_a_server_notices_the_file_and_gives_what_an_embedded_client_gets(
    root, client, make_server, joined, wait_until
):
    with make_server(root) as server, connect(server.target, timeout_seconds=20) as served:
        assert not redacted(whole(served, "staged"))
        take_away(root, "staged", "[[redact]]\ncomponent = 'rows'\nids = [3, 4, 5]\ntoken = 9")
        wait_until(lambda: served.get_dataset("staged").takedown)
        ours, theirs = whole(client, "staged"), whole(served, "staged")
        assert joined(ours) == joined(theirs)
        assert redacted(ours) == redacted(theirs) != {}
        take_away(root, "rows", "[[redact]]\nids = [2000]")
        assert served.get_dataset("rows").takedown
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "rows.takedown.toml: redact[0] names ids 2000, and there is no such" in server.log())
        take_away(root, "staged", "[[redact]]\nids = [1")
        wait_until(lambda: served.get_dataset("staged") and "staged.takedown.toml is not TOML" in server.log())
        assert redacted(whole(served, "staged")) == redacted(theirs)


def test_a_skip_beyond_the_end_is_told_of(root, client, caplog):
    num_bins = client.get_dataset("rows").num_bins
    take_away(root, "rows", f'[[skip]]\npositions = "{num_bins}:{num_bins + 5}"\n[[skip]]\npositions = "0:1"\n')
    with caplog.at_level("WARNING", "packhorse"):
        assert client.stream_bins("rows").header.num_bins == num_bins - 1
    (record,) = caplog.records
    assert record.getMessage() == (
        f"rows.takedown.toml: skip[0] skips nothing: positions {num_bins}:{num_bins + 5} are beyond the end of an "
        f"epoch, which has {num_bins} bins"
    )
