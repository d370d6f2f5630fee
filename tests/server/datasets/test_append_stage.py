"""AppendStage: who may change the future of a mixture, and up to where it is still the future."""

import threading

import pytest
from click.testing import CliRunner
from tests.server.mixtures import bins_of, bins_of_blocks, in_process, make_root

from packhorse.cli import main
from packhorse.client import MemoryDatasets, RetryPolicy, Skips, Topology, connect
from packhorse.client.errors import (
    AccessDeniedError,
    InvalidRequestError,
    NotImplementedByServerError,
    PositionPassedError,
)
from packhorse.server.access.bearer_tokens import Grant, hash_of, new_token
from packhorse.server.datasets.run_progress import RunProgress, make_shared_table

ONCE = RetryPolicy(deadline_seconds=0)


@pytest.fixture
def root(corpus, tmp_path):
    return make_root(corpus, tmp_path)


def test_the_future_changes_and_nothing_before(root):
    before = in_process(root, "staged")
    with connect(f"embedded:{root}") as client, client.stream_bins("staged", epoch=1, seed=7) as stream:
        came = [next(stream) for _ in range(3)]
        info = client.append_stage("staged", from_position=900, weights={"rows": 0.5, "truncated": "1.5"}, by="tokens")
        assert info == client.get_dataset("staged")
        assert [stage.first_position for stage in info.stages] == [0, 710, 900]
        came += list(stream)
        text = (root / "staged.mixture.toml").read_text()
        assert client.append_stage("staged", from_position=900, weights={"rows": 0.5, "truncated": "1.5"}, by="tokens")
        assert (root / "staged.mixture.toml").read_text() == text  # asked again, it is not appended again
    after = in_process(root, "staged")
    assert after.chain[:2] == before.chain
    assert bins_of_blocks(came) == bins_of(after.epoch(1, 7))
    assert bins_of(before.epoch(1, 7), range(400)) == bins_of(after.epoch(1, 7), range(400))


def test_a_stage_that_nobody_has_come_to_is_replaced_and_taken_back(root):
    before = in_process(root, "staged")
    text = (root / "staged.mixture.toml").read_text()
    with connect(f"embedded:{root}") as client:
        client.append_stage("staged", from_position=900, weights={"rows": 1})
        info = client.append_stage("staged", from_position=850, weights={"rows": 1, "truncated": 3}, replace=True)
        assert [stage.first_position for stage in info.stages] == [0, 710, 850]
        assert info == client.append_stage(
            "staged", from_position=850, weights={"rows": 1, "truncated": 3}, replace=True
        )
        with client.stream_bins("staged", epoch=1, seed=7) as stream:
            came = [next(stream)]
            info = client.append_stage("staged", from_position=800, replace=True)
            assert [stage.first_position for stage in info.stages] == [0, 710]
            assert info == client.append_stage("staged", from_position=800, replace=True)  # asked again
            assert (root / "staged.mixture.toml").read_text() == text
            came += list(stream)
        assert bins_of_blocks(came) == bins_of(before.epoch(1, 7))
        with pytest.raises(PositionPassedError, match="bins before 1000 have been sent already"):
            client.append_stage("staged", from_position=710, replace=True)
        with pytest.raises(PositionPassedError, match="cannot change at position 1 of the run"):
            client.append_stage("staged", from_position=1, weights={"rows": 1}, replace=True)
    assert (root / "staged.mixture.toml").read_text() == text


@pytest.mark.parametrize(
    ("topology", "skip", "reached"),
    [
        (Topology(batch_size=4, world_size=2), Skips(), 808),
        (Topology(batch_size=4, world_size=2, start_position=100), Skips(), 908),
        (Topology(batch_size=4, world_size=2, balance="micro-step", accumulation=5), Skips(), 840),
        (Topology(batch_size=4, world_size=2), Skips.parse(["0:50"]), 858),
    ],
)
def test_what_was_handed_out_stays(root, topology, skip, reached):
    """One step of the epoch that begins at position 800 of the run."""
    path = root / "staged.mixture.toml"
    path.write_text(path.read_text().replace("epoch_bins = 500", "epoch_bins = 800"))
    with connect(f"embedded:{root}") as client:
        with client.stream_bins("staged", epoch=1, rank=1, topology=topology, skip=skip) as stream:
            next(stream)
        with pytest.raises(PositionPassedError, match=f"bins before {reached} have been sent") as caught:
            client.append_stage("staged", from_position=reached - 1, weights={"rows": 1})
        assert caught.value.metadata == {
            "dataset": "staged",
            "position": str(reached - 1),
            "reached": str(reached),
        }
        assert client.append_stage("staged", from_position=reached, weights={"rows": 1})
        client.get_bins("staged", epoch=2, positions=[0, 399])
        with pytest.raises(PositionPassedError, match="bins before 2000 have been sent"):
            client.append_stage("staged", from_position=1999, weights={"rows": 1})


@pytest.mark.parametrize(
    ("mixture", "position", "weights", "by", "field", "message"),
    [
        (
            "rows",
            9,
            {"rows": 1},
            "bins",
            "dataset",
            "rows is a prepared dataset; stages can be appended to mixtures only",
        ),
        ("staged", 0, {"rows": 1}, "bins", "from_position", "from_position must be an integer of at least 1"),
        ("staged", 710, {"rows": 1}, "bins", "from_position", "position 710 is not after 710, where the last stage"),
        ("staged", 900, {"rows": -1}, "bins", "weights", "weights.rows must be a number of at least 0, got -1"),
        ("staged", 900, {"rows": "many"}, "bins", "weights", "that of 'rows' is not a number: 'many'"),
        ("staged", 900, {"rows": "NaN"}, "bins", "weights", "weights.rows must be a number of at least 0, got NaN"),
        ("staged", 900, {"books": 1}, "bins", "weights", "no dataset is named 'books'"),
        ("staged", 900, {"rows": 0}, "bins", "weights", "are all 0: give a component a weight"),
        ("staged", 900, {}, "bins", "weights", "weights must give components numbers"),
        ("staged", 900, {"rows": 1}, "words", "by", "by must be one of bins, tokens, got 'words'"),
    ],
)
def test_a_wrong_stage_is_refused_by_field(root, mixture, position, weights, by, field, message):
    before = (root / "staged.mixture.toml").read_text()
    with connect(f"embedded:{root}") as client, pytest.raises(InvalidRequestError, match=message) as caught:
        client.append_stage(mixture, from_position=position, weights=weights, by=by)
    assert caught.value.metadata == {"field": field}
    assert str(root) not in str(caught.value)
    assert (root / "staged.mixture.toml").read_text() == before


def test_datasets_in_memory_have_no_mixtures():
    with connect(MemoryDatasets({"rows": [3, 4]}, max_seq_len=8)) as client, pytest.raises(InvalidRequestError):
        client.append_stage("rows", from_position=9, weights={"rows": 1})


def test_a_server_without_tokens_changes_nothing(root, make_server):
    refused = pytest.raises(NotImplementedByServerError, match="start it with a token_file")
    with make_server(root) as server, connect(server.target, retry=ONCE) as client, refused:
        client.append_stage("staged", from_position=900, weights={"rows": 1})


def test_all_processes_of_a_server_know_what_was_handed_out(root, make_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    scopes = {"reader": {}, "changer": {"methods": ("*", "AppendStage")}}
    tokens = {name: new_token() for name in scopes}
    lines = [str(Grant(name, hash_of(token), **scopes[name])) for name, token in tokens.items()]
    (folder / "tokens").write_text("\n".join(lines))
    (folder / "changer").write_text(tokens["changer"])
    command = ["mixture", "append", "staged", "--weights", "rows=3,truncated=1"]
    access = {"PACKHORSE_CLIENT_TOKEN_FILE": str(folder / "changer")}
    with make_server(root, "--token-file", folder / "tokens", "--processes", "2") as server:
        with connect(server.target, token=tokens["reader"], timeout_seconds=20) as client:
            with client.stream_bins("staged", epoch=1, seed=7, topology=Topology(batch_size=100)) as stream:
                came = [next(stream), next(stream)]
                for _ in range(4):  # connections go to either process
                    with (
                        connect(server.target, token=tokens["changer"], timeout_seconds=20) as other,
                        pytest.raises(PositionPassedError, match="have been sent already"),
                    ):
                        other.append_stage("staged", from_position=601, weights={"rows": 1})
                asked = [*command, "--target", server.target, "--from-position", "1200"]
                result = CliRunner().invoke(main, asked, env=access)
                assert result.exit_code == 0, result.output
                assert "staged: stage 2 begins at position 200 of epoch 2" in result.output
                assert "shares of bins: rows 75.00%, named 0.00%, truncated 25.00%" in result.output
                came += list(stream)
            with pytest.raises(AccessDeniedError, match=r"this token \(reader\) is not for AppendStage"):
                client.append_stage("staged", from_position=1300, weights={"rows": 1})
        after = in_process(root, "staged")
        assert bins_of_blocks(came) == bins_of(after.epoch(1, 7))
        for _ in range(4):
            with connect(server.target, token=tokens["reader"], timeout_seconds=20) as client:
                assert client.get_dataset("staged").digest == after.manifest.digest


def test_processes_and_threads_share_the_furthest_position(tmp_path):
    make_shared_table(tmp_path / "table", 3)
    processes = [RunProgress(tmp_path / "table", slot) for slot in range(3)]

    def note(process, of):
        for position in range(of, 3000, 3):
            process.note("mixed", position)

    threads = [threading.Thread(target=note, args=(processes[n % 3], n)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {process.of("mixed") for process in processes} == {2999}
    assert RunProgress(tmp_path / "table", 1).of("mixed") == 2999  # in the place of one that died
