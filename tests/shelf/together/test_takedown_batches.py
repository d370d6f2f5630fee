"""Batches of which sequences are taken away: masked, or replaced, and everything else as it was, in every loader."""

import numpy as np
import pytest
import torch
from tests.flat_words import packed_bins, packed_dataloader, packed_dataset, prepare

import packhorse.server.datasets.taken_away.takedowns
from packhorse.client import (
    PackedDataset,
    Separators,
    Topology,
    as_token_source,
    connect,
)
from packhorse.formats import MegatronWriter
from packhorse.pictures import draw_bins, explain_step
from packhorse.proof import EpochOfStreams, TokenAudit

MIXTURE = "epoch_bins = 90\n[[stages]]\nweights = {plain = 2, also = 1}\n"
SEPARATORS = Separators(bos_token_id=1, eos_token_id=2)
TOKEN = 3
REPLACED = range(0, 300, 2)
MASKED = range(0, 300, 3)
TAKEDOWN = f"[[redact]]\nids = {list(REPLACED)}\ntoken = {TOKEN}\n[[redact]]\nids = {list(MASKED)}\n"
"""The later one holds: multiples of 6 are masked only."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("takedown")
    random = np.random.default_rng(5)
    for name in ("tokens", "other"):
        with MegatronWriter(folder / name, vocab_size=1000) as writer:
            for _ in range(300):
                writer.append(random.integers(10, 1000, random.integers(1, 60)))
    for name, index, options in (
        ("plain", "tokens", {}),
        ("also", "other", {}),
        ("split", "tokens", {"over_length": "split", "max_seq_len": 48, "align": 4, "extra_tokens": 2}),
    ):
        prepare(
            folder / f"{index}.idx", output=folder / "data" / name, progress=False, **{"max_seq_len": 64, **options}
        )
    (folder / "data" / "mixed.mixture.toml").write_text(MIXTURE)
    return folder


@pytest.fixture
def root(files, monkeypatch):
    monkeypatch.setattr(packhorse.server.datasets.taken_away.takedowns, "FRESH_SECONDS", 0)
    yield files / "data"
    for path in (files / "data").glob("*.takedown.toml"):
        path.unlink()


@pytest.fixture(params=["plain", "split", "mixed"])
def kind(request, files):
    """(name, tokens, further arguments of its loaders)."""
    tokens = files / "tokens.idx"
    if request.param == "mixed":
        return request.param, {"plain": tokens, "also": files / "other.idx"}, {}
    return (
        request.param,
        tokens,
        {"separators": SEPARATORS, "continue_positions": True} if request.param == "split" else {},
    )


def _take_away(root, name):
    component = "component = 'plain'\n" if name == "mixed" else ""
    (root / f"{name}.takedown.toml").write_text(TAKEDOWN.replace("[[redact]]\n", f"[[redact]]\n{component}"))


def _expected(batch, *, num_before=0):
    """What is left of a batch, sequence by sequence; its layout tells where each lies."""
    batch = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in batch.items()}
    layout, ids = batch["layout"], batch["ids"].tolist()
    flat, labels = batch["input_ids"].view(-1), batch["labels"].view(-1)
    of_plain = batch["component_ids"].tolist() if "component_ids" in batch else [0] * len(ids)
    for sequence_id, start, length, dataset in zip(
        ids, layout.starts.tolist(), layout.lengths.tolist(), of_plain, strict=True
    ):
        if dataset or (sequence_id % 2 and sequence_id % 3):
            continue
        labels[start : start + length] = -100
        if sequence_id % 3:
            some = flat[start : start + length]
            some[(some != 1) & (some != 2)] = TOKEN  # separators stay: no token of the files is below 10
    return batch


def _same(one, other):
    for key in ("input_ids", "labels", "sequence_ids", "position_ids", "attention_mask", "cu_seqlens", "ids"):
        assert torch.equal(one[key], other[key]), key


@pytest.mark.parametrize("flatten", [False, True])
def test_batches_are_as_before_but_for_what_is_taken_away(root, kind, flatten):
    name, tokens, options = kind
    make = lambda: packed_dataset(  # noqa: E731
        f"embedded:{root}", name, tokens, batch_size=4, seed=7, rank=0, world_size=1, flatten=flatten, **options
    )
    before = list(make())
    _take_away(root, name)
    after = list(make())
    assert len(after) == len(before)
    for one, other in zip(after, before, strict=True):
        _same(one, _expected(other))
    assert sum(int((batch["labels"] != -100).sum()) for batch in after) > 0
    resumed = make()
    resumed.load_state_dict(before[3]["cursor"])  # it was saved before anything was taken away
    _same(next(iter(resumed)), after[4])
    assert "+redact=" in after[0]["cursor"]["digest"]


def test_by_position_and_through_workers_it_is_the_same(root, kind):
    name, tokens, options = kind
    _take_away(root, name)
    target = f"embedded:{root}"
    plain = list(packed_dataset(target, name, tokens, batch_size=4, seed=7, rank=0, world_size=1, **options))
    bins = packed_bins(target, name, tokens, seed=7, **options)
    rows = [bins[index] for index in range(8)]
    _same(bins.collate(bins.__getitems__(range(4))), plain[0])
    for key in ("input_ids", "labels"):
        expected = torch.cat([plain[0][key], plain[1][key]])
        assert torch.equal(torch.stack([row[key] for row in rows]), expected)
    loader = packed_dataloader(
        target, name, tokens, batch_size=4, seed=7, rank=0, world_size=1, num_workers=2, **options
    )
    for batch, expected in zip(loader, plain, strict=True):
        _same(batch, expected)


def test_presets_and_loss_masks_heed_it(root, files):
    _take_away(root, "plain")
    arguments = (f"embedded:{root}", "plain", files / "tokens.idx")
    kwargs = {"batch_size": 4, "seed": 7, "rank": 0, "world_size": 1}
    plain = next(iter(packed_dataset(*arguments, **kwargs)))
    mask = [np.arange(len(tokens)) % 2 for tokens in _sequences(files)]
    masked = next(iter(packed_dataset(*arguments, loss_mask=mask, **kwargs)))
    kept = (masked["labels"] != -100) & (plain["labels"] == -100)
    assert not kept.any()
    assert 0 < int((masked["labels"] != -100).sum()) < int((plain["labels"] != -100).sum())
    shifted = next(iter(packed_dataset(*arguments, preset="torchtune", **kwargs)))
    assert (shifted["labels"] != -100).sum() == (plain["labels"] != -100).sum()
    assert torch.equal(shifted["tokens"], plain["input_ids"])


def _sequences(files):
    source = as_token_source(files / "tokens.idx")
    return [source.read(number) for number in range(300)]


def test_audits_explanations_and_pictures_tell_of_it(root, kind):
    name, tokens, options = kind
    _take_away(root, name)
    target = f"embedded:{root}"
    options = {key: value for key, value in options.items() if key != "continue_positions"}
    with connect(target) as client:
        info = client.get_dataset(name)
        topology = Topology(world_size=2, batch_size=3)
        streams = EpochOfStreams(client=client, dataset=info, epoch=0, seed=7, topology=topology)
        dataset = packed_dataset(target, name, tokens, batch_size=3, rank=0, world_size=1, **options)
        report = TokenAudit(streams=streams, dataset=dataset).audit()
        assert report.problems == []
        assert report.streams.masked > 0
        assert report.streams.replaced > 0
        if name == "plain":
            assert (report.streams.masked, report.streams.replaced) == (100, 100)
        step = explain_step(client, name, step=0, seed=7, topology=topology)
        marks = {sequence.id: sequence.redaction for row in step.rows for sequence in row.sequences}
        if name != "mixed":
            told = {
                number: "" if number % 2 and number % 3 else "replaced by 3" if number % 3 else "masked"
                for number in marks
            }
            assert marks == told
        assert ", masked" in str(step) or ", replaced by 3" in str(step)
        assert "masked" in draw_bins(client, name, seed=7).text(width=400)


def test_a_wrong_batch_is_found_by_the_token_audit(root, files, monkeypatch):
    """One that does not heed what is taken away."""
    from packhorse.client.batches._content import Content

    _take_away(root, "plain")
    monkeypatch.setattr(Content, "redacted_indices", lambda self: [])
    target = f"embedded:{root}"
    with connect(target) as client:
        streams = EpochOfStreams(
            client=client, dataset=client.get_dataset("plain"), epoch=0, seed=7, topology=Topology()
        )
        dataset = PackedDataset(target, "plain", files / "tokens.idx", batch_size=1, rank=(0, 1))
        assert TokenAudit(streams=streams, dataset=dataset).audit().problems
