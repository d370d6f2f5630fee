"""An epoch in files: the bins of any ranks in the order of `stream`, in forms that their readers accept."""

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.flat_words import prepare

from packhorse.client import connect
from packhorse.client.errors import TokensNotServedError
from packhorse.export.files import export_epoch
from packhorse.formats import MegatronWriter
from packhorse.formats.megatron import MaskedTokenWriter
from packhorse.topology import Skips, Topology

RUN = {"epoch": 2, "seed": 7}
MAX_SEQ_LEN = 64
MIXTURE = "epoch_bins = 90\n[[stages]]\nweights = {plain = 2, split = 1}\n"


@pytest.fixture(scope="module")
def lengths():
    """Of 300 sequences, some longer than a bin."""
    return np.random.default_rng(3).integers(1, 150, 300)


@pytest.fixture(scope="module")
def root(lengths, tmp_path_factory):
    """`plain` (long ones are cut), `split` (into pieces), `groups` of up to four, `mixed` of the first two."""
    folder = tmp_path_factory.mktemp("export")
    short = np.minimum(lengths, MAX_SEQ_LEN // 4)
    pq.write_table(pa.table({"n": lengths, "short": short, "prompt": np.arange(300) // 4}), folder / "x.parquet")
    for name, options in (
        ("plain", {"length_column": "n", "over_length": "truncate"}),
        ("split", {"length_column": "n", "over_length": "split"}),
        ("groups", {"length_column": "short", "group_column": "prompt"}),
    ):
        output = folder / "data" / name
        prepare(folder / "x.parquet", max_seq_len=MAX_SEQ_LEN, output=output, progress=False, **options)
    (folder / "data" / "mixed.mixture.toml").write_text(MIXTURE)
    return folder / "data"


KINDS = ("plain", "split", "groups", "mixed")


def paths_of(name):
    return [f"{component}.jsonl" for component in (("plain", "split") if name == "mixed" else (name,))]


def bins_of_ranks(client, dataset, topology, **options):
    """Every rank's bins, step after step: position, ids and lengths."""
    of_ranks = []
    for rank in range(topology.world_size):
        bins = []
        with client.stream_bins(dataset, rank=rank, topology=topology, **RUN, **options) as stream:
            for block in stream:
                for position, (ids, lengths) in zip(block.positions.tolist(), block.bins(), strict=True):
                    bins.append((position, ids.tolist(), lengths.tolist()))
        of_ranks.append(bins)
    size = topology.batch_size
    return [
        each for first in range(0, len(of_ranks[0]), size) for bins in of_ranks for each in bins[first : first + size]
    ]


def read_preset_pack(folder):
    """What xtuner's PresetPackDataset and PresetSampler read, with their checks: bins of rows of samples.npy."""
    boundaries = np.load(folder / "boundaries.npy", mmap_mode="r")
    samples = np.load(folder / "samples.npy", mmap_mode="r")
    order = np.load(folder / "order.npy", mmap_mode="r")
    paths = json.loads((folder / "paths.json").read_text(encoding="utf-8"))
    assert boundaries.dtype == samples.dtype == order.dtype == np.int64
    assert boundaries[0] == 0
    assert boundaries[-1] == len(samples)
    assert samples.ndim == 2
    assert samples.shape[1] == 6
    assert order.ndim == 1
    assert ((samples[:, 0] >= 0) & (samples[:, 0] < len(paths))).all()
    assert (samples[:, 2:4] == -1).all()
    assert (samples[:, 4] >= 0).all()
    assert (samples[:, 5] > samples[:, 4]).all()
    return [samples[boundaries[pack] : boundaries[pack + 1]].tolist() for pack in order]


@pytest.mark.parametrize("topology", [Topology(), Topology(world_size=3, batch_size=2)])
@pytest.mark.parametrize("skip", [Skips(), Skips.of([(3, 9)])])
def test_every_format_has_the_order_of_the_streams(client, tmp_path, topology, skip):
    options = {"skip": skip, **RUN}
    num_bins = export_epoch(client, "rows", tmp_path / "plan.jsonl", file_format="jsonl", **options)
    lines = [json.loads(line) for line in (tmp_path / "plan.jsonl").read_text().splitlines()]
    bins = [(line["position"], line["ids"], line["lengths"]) for line in lines]
    assert len(bins) == num_bins > 20
    num_full = num_bins - num_bins % topology.bins_per_step  # the last step is spread over its ranks
    assert bins_of_ranks(client, "rows", topology, skip=skip)[:num_full] == bins[:num_full]

    export_epoch(client, "rows", tmp_path / "plan.parquet", file_format="parquet", **options)
    table = pq.read_table(tmp_path / "plan.parquet").to_pydict()
    assert list(zip(table["position"], table["ids"], table["lengths"], strict=True)) == bins
    assert set(table["component"]) == set(table["groups"]) == {None}

    export_epoch(client, "rows", tmp_path / "plan", file_format="xtuner", paths=["rows.jsonl"], **options)
    packs = read_preset_pack(tmp_path / "plan")
    assert [[row[1] for row in pack] for pack in packs] == [ids for _, ids, _ in bins]
    assert [[row[5] - row[4] for row in pack] for pack in packs] == [lengths for _, _, lengths in bins]


@pytest.mark.parametrize("name", KINDS)
def test_every_format_holds_what_a_stream_tells_of_a_sequence(name, root, tmp_path):
    """Pieces with their first tokens, groups whole, a mixture's components; each sequence as often as it comes."""
    streamed = []
    with connect(f"embedded:{root}") as client:
        with client.stream_bins(name, **RUN) as stream:
            for block in stream:
                components = block.component_of_sequences()
                for first, end in zip(block.bin_starts().tolist(), block.bin_ends.tolist(), strict=True):
                    first_tokens = [0] * (end - first) if block.first_tokens is None else block.first_tokens[first:end]
                    streamed.append(
                        {
                            "path": [0] * (end - first) if components is None else components[first:end].tolist(),
                            "ids": block.ids[first:end].tolist(),
                            "first": list(map(int, first_tokens)),
                            "lengths": block.lengths[first:end].tolist(),
                            "groups": None if block.group_ids is None else block.group_ids[first:end].tolist(),
                        }
                    )
        for file_format, paths in (("jsonl", ()), ("parquet", ()), ("xtuner", paths_of(name))):
            export_epoch(client, name, tmp_path / file_format, file_format=file_format, paths=paths, **RUN)
    assert len(streamed) > 20
    lines = [json.loads(line) for line in (tmp_path / "jsonl").read_text().splitlines()]
    table = pq.read_table(tmp_path / "parquet").to_pylist()
    for line, row in zip(lines, table, strict=True):
        assert row == {**dict.fromkeys(row), **line}
    assert [line["ids"] for line in lines] == [each["ids"] for each in streamed]
    assert [line.get("groups") for line in lines] == [each["groups"] for each in streamed]
    if name == "mixed":
        names = ["plain", "split"]
        assert [line["component"] for line in lines] == [names[each["path"][0]] for each in streamed]
    packs = read_preset_pack(tmp_path / "xtuner")
    for pack, each in zip(packs, streamed, strict=True):
        ends = [first + length for first, length in zip(each["first"], each["lengths"], strict=True)]
        assert [list(columns) for columns in zip(*pack, strict=True)] == [
            each["path"],
            each["ids"],
            *([[-1] * len(pack)] * 2),
            each["first"],
            ends,
        ]


def test_pieces_cover_every_token_once(root, lengths, tmp_path):
    with connect(f"embedded:{root}") as client:
        export_epoch(client, "split", tmp_path / "plan", file_format="xtuner", paths=["split.jsonl"], **RUN)
    seen = Counter(
        (row[1], token) for pack in read_preset_pack(tmp_path / "plan") for row in pack for token in range(*row[4:6])
    )
    assert seen == Counter((line, token) for line, length in enumerate(lengths.tolist()) for token in range(length))


def test_redactions_are_refused_and_skipped_positions_left_out(root, tmp_path):
    takedown = root / "plain.takedown.toml"
    try:
        with connect(f"embedded:{root}") as client:
            num_bins = client.get_dataset("plain").num_bins
        takedown.write_text(f"[[redact]]\nids = {list(range(0, 300, 3))}\n")
        for name in ("plain", "mixed"):
            with connect(f"embedded:{root}") as client, pytest.raises(ValueError, match="prepare without them"):
                export_epoch(client, name, tmp_path / "plan", file_format="parquet", **RUN)
        assert not list(tmp_path.iterdir())
        takedown.write_text(f"[[skip]]\npositions = '4:9'\nepoch = {RUN['epoch']}\n")
        with connect(f"embedded:{root}") as client:
            assert export_epoch(client, "plain", tmp_path / "plan", file_format="jsonl", **RUN) == num_bins - 5
    finally:
        takedown.unlink()


class Rows:
    """A dataset of xtuner: token t of line i is 1000 · i + t."""

    def __init__(self, path, lengths):
        self.path, self._lengths = path, lengths.tolist()

    def __len__(self):
        return len(self._lengths)

    def __getitem__(self, line):
        tokens = [1000 * line + token for token in range(self._lengths[line])]
        return {"input_ids": tokens, "labels": tokens, "num_tokens": len(tokens)}


@pytest.mark.parametrize("name", KINDS)
def test_xtuner_reads_these_bins(name, root, lengths, tmp_path, module_alone):
    """Its own PresetPackDataset and PresetSampler (main of August 2026; 0.2.0 has none)."""
    datasets = "xtuner.v1.datasets"
    stand_ins = ["xtuner.v1.utils", *(f"{datasets}.{each}" for each in ("data_item", "jsonl", "utils"))]
    preset_pack = module_alone(f"{datasets}.preset_pack", *stand_ins)
    preset_sampler = module_alone(f"{datasets}.preset_sampler", *stand_ins)
    with connect(f"embedded:{root}") as client:
        num_bins = export_epoch(client, name, tmp_path / "plan", file_format="xtuner", paths=paths_of(name), **RUN)
        with client.stream_bins(name, **RUN) as stream:
            bins = []
            for block in stream:
                firsts = np.zeros_like(block.ids) if block.first_tokens is None else block.first_tokens
                starts = np.split(1000 * block.ids + firsts, block.bin_ends[:-1])
                bins += [
                    [token for start, length in zip(*each, strict=True) for token in range(start, start + length)]
                    for each in zip(starts, (lengths for _, lengths in block.bins()), strict=True)
                ]
    packs = preset_pack.PresetPackDataset(
        [Rows(path, lengths) for path in paths_of(name)],
        str(tmp_path / "plan"),
        MAX_SEQ_LEN,
        short_pack_strategy="padding",
        long_pack_strategy="error",
    )
    order = list(preset_sampler.PresetSampler(packs, str(tmp_path / "plan" / "order.npy"), global_batch_size=1))
    assert len(order) == len(packs) == num_bins
    for number, tokens in zip(order, bins, strict=True):
        items = packs[number]
        assert sum(item["num_tokens"] for item in items) == MAX_SEQ_LEN
        assert [token for item in items for token in item["labels"] if token != -100] == tokens


def test_progress_counts_every_bin(client, tmp_path):
    counted = []
    num_bins = export_epoch(client, "rows", tmp_path / "plan", file_format="jsonl", on_bins=counted.append)
    assert sum(counted) == num_bins


@pytest.mark.parametrize(
    ("output", "options", "message"),
    [
        ("s3://bucket/plan", {"file_format": "jsonl"}, "is a URL"),
        ("plan", {"file_format": "csv"}, "file_format must be one of jsonl, parquet, xtuner"),
        ("plan", {"file_format": "xtuner"}, "paths"),
        ("plan", {"file_format": "jsonl", "paths": ["a"]}, "paths"),
        ("plan", {"file_format": "xtuner", "paths": ["a", "b"]}, "paths has 2 files"),
    ],
)
def test_what_cannot_be_written_is_refused(client, tmp_path, monkeypatch, output, options, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        export_epoch(client, "rows", output, **options)
    assert not list(tmp_path.iterdir())


def test_an_output_that_is_there_stays(client, tmp_path):
    output = tmp_path / "plan.jsonl"
    output.write_text("mine")
    with pytest.raises(FileExistsError, match=r"plan\.jsonl"):
        export_epoch(client, "rows", output, file_format="jsonl")
    assert output.read_text() == "mine"


def test_after_a_failure_there_is_no_file(client, tmp_path):
    def fail(num_bins):
        raise OSError("the disk is full")

    for file_format, paths in (("jsonl", []), ("parquet", []), ("xtuner", ["rows.jsonl"])):
        with pytest.raises(OSError, match="full"):
            export_epoch(client, "rows", tmp_path / file_format, file_format=file_format, paths=paths, on_bins=fail)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("with_mask", [False, True])
def test_tokens_are_those_of_the_file(with_mask, tmp_path):
    documents = [np.arange(length) * 7 + length for length in range(1, 60)]
    open_writer = MaskedTokenWriter if with_mask else MegatronWriter
    with open_writer(tmp_path / "corpus", vocab_size=90_000) as writer:
        for document in documents:
            writer.append(document, *([document % 2 > 0] if with_mask else []))
    prepare(f"{tmp_path}/corpus.idx", output=tmp_path / "sets" / "words", max_seq_len=40, over_length="split")
    with connect(f"embedded:{tmp_path / 'sets'}") as client:
        for file_format in ("jsonl", "parquet"):
            export_epoch(client, "words", tmp_path / file_format, file_format=file_format, with_tokens=True, **RUN)
        with pytest.raises(ValueError, match="xtuner reads tokens itself"):
            export_epoch(client, "words", tmp_path / "x", file_format="xtuner", paths=["a"], with_tokens=True, **RUN)
    lines = [json.loads(line) for line in (tmp_path / "jsonl").read_text().splitlines()]
    rows = pq.read_table(tmp_path / "parquet").to_pylist()
    assert len(lines) == len(rows) > 20
    for line, row in zip(lines, rows, strict=True):
        assert row == {**dict.fromkeys(row), **line}
        of_bin = zip(line["ids"], line["first_tokens"], line["lengths"], line["tokens"], strict=True)
        for number, (sequence_id, first, length, tokens) in enumerate(of_bin):
            assert tokens == documents[sequence_id][first : first + length].tolist()
            if with_mask:
                assert line["loss_mask"][number] == [token % 2 > 0 for token in tokens]
    assert ("loss_mask" in lines[0]) is with_mask


def test_tokens_that_no_server_sends_are_refused(client, tmp_path):
    with pytest.raises(TokensNotServedError):
        export_epoch(client, "rows", tmp_path / "x.jsonl", file_format="jsonl", with_tokens=True)
    assert not list(tmp_path.iterdir())
