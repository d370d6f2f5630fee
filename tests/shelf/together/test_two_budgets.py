"""A dataset with resources under everything that a run does: caps hold, and every sequence comes once."""

import json

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from tests.flat_words import prepare
from tests.servers import Server

from packhorse.cli import main
from packhorse.client import connect
from packhorse.export.files import export_epoch
from packhorse.prepare import Resource
from packhorse.topology import Balance, Topology

NUM, CAP = 700, 8
DRAW = np.random.default_rng(11)
TILES = np.where(DRAW.random(NUM) < 0.5, 0, DRAW.integers(1, 7, NUM))
LENGTHS = 32 * TILES + DRAW.integers(1, 150, NUM)
TEXT = DRAW.integers(1, 256, 300)


def write(root, name, *, cap=CAP):
    table = pa.table({"n": LENGTHS, "tiles": TILES})
    resources = (Resource(name="tiles", column="tiles", cap=cap),)
    words = {"max_seq_len": 512, "progress": False}
    prepare(lengths=table, length_column="n", resources=resources, output=root / name, **words)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("budgets")
    write(folder, "images")
    prepare(lengths=TEXT, max_seq_len=512, output=folder / "text", progress=False)
    stages = "[[stages]]\nweights = {images = 2, text = 1}\n"
    (folder / "both.mixture.toml").write_text("epoch_bins = 60\n" + stages)
    return folder


@pytest.fixture(scope="module")
def server(root, tmp_path_factory):
    server = Server(root, log=tmp_path_factory.mktemp("log") / "server.log")
    yield server
    server.stop()


def check(ids):
    assert LENGTHS[ids].sum() <= 512
    assert TILES[ids].sum() <= CAP


@pytest.mark.parametrize("balance", [Balance.NONE, Balance.MICRO_STEP, Balance.OPTIMIZER_STEP])
def test_ranks_share_an_epoch_and_go_on_as_other_ranks(server, balance):
    seen: list[int] = []
    with connect(server.target) as client:
        shapes = [(4, 0, 16), (2, 16, None)]
        for world_size, start, stop in shapes:
            for rank in range(world_size):
                topology = Topology(world_size=world_size, accumulation=2, balance=balance, start_position=start)
                read = 0
                for block in client.stream_bins("images", topology=topology, rank=rank, seed=9):
                    for ids, lengths in block.bins():
                        if stop is not None and read == stop // world_size:
                            break
                        read += 1
                        check(ids)
                        assert (lengths == LENGTHS[ids]).all()
                        seen += ids.tolist()
    assert sorted(seen) == list(range(NUM))


def test_audits_exports_and_places(root, tmp_path):
    result = CliRunner().invoke(main, ["audit", "images", "--world-size", "3", "--target", f"embedded:{root}"])
    assert result.exit_code == 0, result.output
    with connect(f"embedded:{root}") as client:
        export_epoch(client, "images", tmp_path / "plan.jsonl", file_format="jsonl", seed=4)
        lines = [json.loads(line) for line in (tmp_path / "plan.jsonl").read_text().splitlines()]
        for line in lines:
            check(line["ids"])
        assert sorted(id for line in lines for id in line["ids"]) == list(range(NUM))
        located = client.locate("images", ids=[line["ids"][0] for line in lines], seed=4)
        assert [each.position for each in located] == [line["position"] for line in lines]
        assert {each.index_in_bin for each in located} == {0}


def test_a_picture_says_what_sequences_take(root):
    result = CliRunner().invoke(main, ["show", "images", "--target", f"embedded:{root}", "--limit", "1"])
    said = f"images, epoch 0, seed 0; {TILES.sum():,} tiles, at most {TILES.max()} a sequence and {CAP} a bin"
    assert result.output.splitlines()[0] == said


def test_a_mixture_with_text_holds_the_cap(root):
    with connect(f"embedded:{root}") as client:
        info = client.get_dataset("both")
        assert [(each.name, each.cap) for each in info.resources] == [("tiles", CAP)]
        names = [component.name for component in info.components]
        for block in client.stream_bins("both", seed=2):
            for (ids, lengths), component in zip(block.bins(), block.component_ids, strict=True):
                if names[component] == "images":
                    check(ids)
                else:
                    assert (lengths == TEXT[ids]).all()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "weights = {images = 1, other = 1}",
            "images was prepared with a cap of 8 on resource 'tiles', and other with 9",
        ),
        (
            "weights = {images = 1, long = 1}",
            "images has resources, and bins of max_seq_len 512 joined into one of 1024",
        ),
    ],
)
def test_components_that_do_not_go_together_are_refused(root, text, said):
    if not (root / "other").exists():
        write(root, "other", cap=9)
        prepare(lengths=TEXT, max_seq_len=1024, output=root / "long", progress=False)
    whole = "max_seq_len = 1024\n" if "long" in text else ""
    (root / "wrong.mixture.toml").write_text(f"{whole}epoch_bins = 8\n[[stages]]\n{text}\n")
    result = CliRunner().invoke(main, ["mixture", "show", "wrong", "--target", f"embedded:{root}"])
    (root / "wrong.mixture.toml").unlink()
    assert result.exit_code != 0
    assert said in result.output
