"""A run that changes course: other weights on the second day, a takedown on the third, another rank on the fourth.

Trainers of a real server record every row that they train on; at the end the run is read again from its beginning, and
audited, and must be what they recorded.
"""

import json
from dataclasses import dataclass, field

import numpy as np
import pytest
from click.testing import CliRunner
from tests.flat_words import prepare

from packhorse.cli import main
from packhorse.client import PackedDataset, Topology, as_token_source, connect
from packhorse.formats import MegatronWriter
from packhorse.proof import EpochOfStreams, TokenAudit
from packhorse.server.datasets.lazy_catalog import LazyCatalog
from packhorse.server.datasets.mixtures import Mixtures

DAY = 96
SEED = 11
SIZES = {"web": 900, "code": 300, "chat": 200}
MIXTURE = "epoch_bins = 384\n\n[[stages]]\nweights = {web = 70, code = 20, chat = 10}\n"
PRIVATE = list(range(0, 900, 7))
"""Of web; the first of them come on the first day."""

REPLACED = 1000


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("course")
    random = np.random.default_rng(2)
    for name, num in SIZES.items():
        with MegatronWriter(folder / name, vocab_size=1000) as writer:
            for _ in range(num):
                writer.append(random.integers(1, 1000, random.integers(2, 60)))
        prepare(folder / f"{name}.idx", max_seq_len=128, output=folder / "data" / name, progress=False)
    (folder / "data" / "run.mixture.toml").write_text(MIXTURE)
    return folder


@dataclass
class Run:
    """Trainers of one run, stopped and started again from their last checkpoint."""

    target: str
    tokens: dict
    cursor: dict = field(default_factory=dict)
    rows: dict = field(default_factory=dict)
    """Position → (component, tokens, labels) of every row trained on."""

    def dataset(self, rank, world_size, batch_size=4):
        return PackedDataset(self.target, "run", self.tokens, batch_size=batch_size, seed=SEED, rank=(rank, world_size))

    def train(self, world_size, until):
        ranks = [self.dataset(rank, world_size) for rank in range(world_size)]
        for rank in ranks:
            if self.cursor:
                rank.load_state_dict(self.cursor)
        streams = [iter(rank) for rank in ranks]
        while not self.cursor or self.cursor["position"] < until:
            batches = [next(stream) for stream in streams]
            cursors = [dict(batch["cursor"]) for batch in batches]
            assert all(cursor == cursors[0] for cursor in cursors)
            self.cursor = json.loads(json.dumps(cursors[0]))  # as a checkpoint holds it
            first = self.cursor["position"] - 4 * world_size
            for row, batch in enumerate(batches):
                self.record(batch, first + 4 * row)
        for stream in streams:
            stream.close()

    def record(self, batch, first):
        for row, component in enumerate(batch["bin_component_ids"].tolist()):
            assert first + row not in self.rows
            tokens, labels = batch["input_ids"][row].tolist(), batch["labels"][row].tolist()
            self.rows[first + row] = (batch["component_names"][component], tokens, labels)


def command(*arguments):
    result = CliRunner().invoke(main, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_audit_of_the_whole_run_says_what_was_trained_on(files, make_server):
    root = files / "data"
    tokens = {name: files / f"{name}.idx" for name in SIZES}
    with make_server(root) as server:
        run = Run(server.target, tokens)
        run.train(2, DAY)
        half = DAY + DAY // 2
        append = ("mixture", "append", "run", "--data-root", root)
        command(*append, "--from-position", half, "--weights", "web=50,code=40,chat=10")
        run.train(2, 2 * DAY + 24)  # the weights change on the way, and nobody stops for it
        ids = ",".join(map(str, PRIVATE))
        taken = run.cursor["position"]
        where = ("--component", "web", "--seed", SEED, "--from-position", taken)
        command("redact", "run", "--data-root", root, "--ids", ids, "--replace", REPLACED, *where)
        run.train(2, 3 * DAY)
        run.train(3, 4 * DAY)
        assert sorted(run.rows) == list(range(4 * DAY))

        # what was trained on is what the run is, read again from its beginning
        again = Run(server.target, tokens)
        for batch in again.dataset(0, 1, batch_size=1):
            again.record(batch, batch["cursor"]["position"] - 1)
        assert run.rows == again.rows

        # and what the audit says of it
        with connect(server.target) as client:
            topology = Topology(world_size=3, batch_size=4)
            info = client.get_dataset("run")
            streams = EpochOfStreams(client=client, dataset=info, epoch=0, seed=SEED, topology=topology)
            report = TokenAudit(streams=streams, dataset=run.dataset(0, 1)).audit()
        said = command("audit", "--target", server.target, "run", "--seed", SEED, "--world-size", 3)
    assert report.problems == []
    components = {each.component.name: each for each in report.streams.components}
    trained = [component for _, (component, _, _) in sorted(run.rows.items())]
    assert {name: each.bins for name, each in components.items()} == {name: trained.count(name) for name in SIZES}
    dealt = Mixtures(LazyCatalog(root, set())).get("run").epoch(0, SEED).bins(np.arange(4 * DAY)).component_ids
    assert [list(SIZES).index(component) for component in trained] == dealt.tolist()
    before, after = trained[:half], trained[half:]
    assert abs(before.count("code") - 0.2 * len(before)) < 15 < abs(after.count("code") - 0.2 * len(after))
    assert f"129 ids of web replaced by token {REPLACED}, in the run of seed {SEED} from position {taken} on" in said
    assert said.endswith("every sequence as often as the mixture says: yes\n")

    # the private documents were read before the takedown, and never again
    private = _texts(files / "web.idx", PRIVATE)
    web = {position: (row, labels) for position, (name, row, labels) in run.rows.items() if name == "web"}
    read = {position for position, (row, _) in web.items() if any(text in _text(row) for text in private)}
    redacted = {position: labels for position, (row, labels) in web.items() if REPLACED in row}
    assert read
    assert max(read) < taken <= min(redacted)
    assert report.streams.replaced >= len(redacted) > 5
    assert all(REPLACED not in labels for labels in redacted.values())


def _texts(index, ids):
    """Documents of five tokens or more, as text: shorter ones may stand in others by chance."""
    source = as_token_source(index)
    return [_text(source.read(number).tolist()) for number in ids if len(source.read(number)) >= 5]


def _text(tokens):
    return " " + " ".join(map(str, tokens)) + " "
