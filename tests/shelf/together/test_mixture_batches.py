"""Batches of a mixture: each row's tokens are its component's, and each sequence says which that is."""

import numpy as np
import pytest
import torch
from tests.flat_words import packed_dataset, prepare
from torch.utils.data import DataLoader

from packhorse.client import BatchFormat, PackedBins, PackedDataset, Separators, Topology, as_token_source, connect
from packhorse.client.sources import IndexableSource, TokenSourceError
from packhorse.dataset import StageEntry, append_to_mixture
from packhorse.losses import per_component_metrics
from packhorse.pictures import explain_step
from packhorse.proof import EpochOfStreams, TokenAudit
from packhorse.server.datasets.lazy_catalog import LazyCatalog

LENGTHS = {"web": 300, "code": 200, "chat": 90}
"""Sequences of each; `code` is split at 48 tokens, and ids of `chat` are names."""

MIXTURE = """
epoch_bins = 120
[[stages]]
until_bins = 60
weights = {web = 7, code = 3}
[[stages]]
weights = {code = 1, chat = 1}
"""


@pytest.fixture(scope="module")
def sequences():
    random = np.random.default_rng(3)
    return {
        name: [random.integers(1, 1000, random.integers(1, 70 if name == "code" else 40)) for _ in range(num)]
        for name, num in LENGTHS.items()
    }


@pytest.fixture(scope="module")
def names():
    return np.random.default_rng(4).choice(2**40, LENGTHS["chat"], replace=False)


@pytest.fixture(scope="module")
def root(sequences, names, tmp_path_factory):
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path_factory.mktemp("mixture")
    for name, some in sequences.items():
        ids = names if name == "chat" else np.arange(len(some))
        pq.write_table(pa.table({"length": [len(tokens) for tokens in some], "id": ids}), folder / f"{name}.parquet")
        prepare(
            folder / f"{name}.parquet",
            length_column="length",
            id_column="id" if name == "chat" else None,
            output=folder / "root" / name,
            max_seq_len=48,
            extra_tokens=1,
            over_length="split" if name == "code" else "error",
            progress=False,
            workers=1,
        )
    (folder / "root" / "mix.mixture.toml").write_text(MIXTURE)
    return folder / "root"


@pytest.fixture(scope="module")
def tokens(sequences, names):
    of_chat = dict(zip(names.tolist(), sequences["chat"], strict=True))
    return {"web": sequences["web"], "code": IndexableSource(sequences["code"]), "chat": of_chat}


def dataset_of(root, tokens, **options):
    options = {
        "batch_size": 4,
        "seed": 1,
        "rank": 0,
        "world_size": 1,
        "separators": Separators(eos_token_id=0),
    } | options
    return packed_dataset(f"embedded:{root}", "mix", tokens, **options)


@pytest.mark.parametrize("flatten", [False, True])
def test_every_sequence_has_the_tokens_of_its_component(root, tokens, sequences, names, flatten):
    rows_of = {"chat": {name: row for row, name in enumerate(names.tolist())}}
    came = dict.fromkeys(LENGTHS, 0)
    for batch in dataset_of(root, tokens, flatten=flatten):
        layout = batch["layout"]
        input_ids = batch["input_ids"].numpy().ravel()
        assert batch["component_names"] == ("web", "code", "chat")
        of_bins = batch["bin_component_ids"].numpy()
        assert (of_bins.dtype, len(of_bins), of_bins.min() >= 0) == (np.int32, 4, True)
        if not flatten:
            of_rows = of_bins.repeat(np.diff(layout.row_ends, prepend=0))
            assert batch["component_ids"].tolist() == of_rows.tolist()
        columns = (batch["ids"].tolist(), batch["component_ids"].tolist(), layout.starts, layout.lengths)
        for sequence_id, component_id, start, length in zip(*columns, strict=True):
            name = batch["component_names"][component_id]
            whole = [*sequences[name][rows_of.get(name, {}).get(sequence_id, sequence_id)].tolist(), 0]
            piece = input_ids[start : start + length].tolist()
            if name == "code":
                assert str(piece)[1:-1] in str(whole)
            else:
                assert piece == whole
            came[name] += 1
    assert min(came.values()) > 20


def test_a_components_loss_mask_leaves_the_others_predicted(root, tokens, sequences, names):
    masks = {name: np.arange(len(tokens)) % 2 for name, tokens in zip(names.tolist(), sequences["chat"], strict=True)}
    for batch in dataset_of(root, tokens, loss_mask={"chat": masks}):
        plain = next(each for each in dataset_of(root, tokens) if each["cursor"] == batch["cursor"])
        of_tokens = batch["bin_component_ids"][:, None].expand_as(batch["labels"])
        assert torch.equal(batch["labels"][of_tokens != 2], plain["labels"][of_tokens != 2])
        if (of_tokens == 2).any():
            assert (batch["labels"] != -100)[of_tokens == 2].sum() < (plain["labels"] != -100)[of_tokens == 2].sum()
            return
    raise AssertionError("no chat came")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["web"], r"the mixture's code, chat have no source of tokens; given are web"),
        (None, r"the dataset is a mixture; give tokens by component, \{'web': …, 'code': …, 'chat': …\}"),
    ],
)
def test_tokens_that_do_not_fit_the_mixture_are_refused(root, tokens, given, message):
    some = tokens["web"] if given is None else {name: tokens[name] for name in given}
    with pytest.raises(TokenSourceError, match=message):
        next(iter(dataset_of(root, some)))


def test_tokens_by_component_are_refused_for_one_dataset(root, tokens):
    dataset = PackedDataset(f"embedded:{root}", "web", tokens, batch_size=4, rank=(0, 1))
    with pytest.raises(TokenSourceError, match="this dataset is not a mixture; give one source"):
        next(iter(dataset))


def test_a_loss_mask_of_an_unknown_component_is_refused(root, tokens):
    with pytest.raises(TokenSourceError, match="the loss mask is of chta, for which there are no tokens"):
        dataset_of(root, tokens, loss_mask={"chta": {}})
    with pytest.raises(TokenSourceError, match="the loss mask is given by component, but tokens are not"):
        dataset_of(root, tokens["web"], loss_mask={"chat": {}})
    with pytest.raises(TokenSourceError, match="tokens are given by component, but the loss mask is not"):
        dataset_of(root, tokens, loss_mask=tokens["chat"])


def test_batches_cross_from_workers_and_resume_under_another_shape(root, tokens):
    loader = DataLoader(dataset_of(root, tokens), batch_size=None, num_workers=2)
    whole = list(loader)
    assert [tuple(batch["component_names"]) for batch in whole] == [("web", "code", "chat")] * 30
    cursor = whole[13]["cursor"]
    parts = []
    for rank in range(2):
        dataset = dataset_of(root, tokens, rank=rank, world_size=2, batch_size=2)
        dataset.load_state_dict(cursor)
        parts.append(list(dataset))
    rest = [pair for pairs in zip(*parts, strict=True) for batch in pairs for pair in pairs_of(batch)]
    assert rest == [pair for batch in whole[14:] for pair in pairs_of(batch)]


def pairs_of(batch):
    return list(zip(batch["component_ids"].tolist(), batch["ids"].tolist(), strict=True))


def test_rows_by_position_say_their_component(root, tokens):
    bins = PackedBins(
        f"embedded:{root}",
        "mix",
        tokens,
        seed=1,
        num_bins_multiple_of=7,
        batch=BatchFormat(separators=Separators(eos_token_id=0)),
    )
    [*batches] = dataset_of(root, tokens)
    of_bins = torch.cat([batch["bin_component_ids"] for batch in batches]).tolist()
    assert [int(row["component_id"]) for row in bins] == [*of_bins, *[-1] * (126 - 120)]
    collated = next(iter(DataLoader(bins, batch_size=4, collate_fn=bins.collate)))
    assert pairs_of(collated) == pairs_of(batches[0])


def test_every_token_is_audited_and_a_swapped_source_is_found(root, tokens):
    with connect(f"embedded:{root}") as client:
        info = client.get_dataset("mix")
        streams = EpochOfStreams(client=client, dataset=info, epoch=0, seed=1, topology=Topology(world_size=2))
        dataset = dataset_of(root, tokens, batch_size=1)
        report = TokenAudit(streams=streams, dataset=dataset).audit()
        assert report.problems == []
        assert report.tokens == report.streams.tokens - report.streams.sequences  # a room has one more
        others = {**tokens, "web": [sequence[::-1] for sequence in tokens["web"]]}
        report = TokenAudit(streams=streams, dataset=dataset, against=as_token_source(others)).audit()
        assert report.problems


def test_a_step_is_explained_with_its_documents(root, tokens):
    with connect(f"embedded:{root}") as client:
        plain = explain_step(client, "mix", step=40, seed=1)
        named = explain_step(client, "mix", step=40, seed=1, tokens=as_token_source(tokens))
    [batch] = [batch for batch in dataset_of(root, tokens, batch_size=1) if batch["cursor"]["position"] == 41]
    assert plain.ids == named.ids == batch["ids"].tolist()
    name = batch["component_names"][int(batch["bin_component_ids"][0])]
    assert all(sequence.origin.endswith(f" of {name}") for sequence in plain.rows[0].sequences)
    first = named.rows[0].sequences[0]
    assert list(first.first_tokens) == batch["input_ids"][0, : len(first.first_tokens)].tolist()


def test_a_component_that_a_stage_brings_needs_its_tokens(root, tokens, tmp_path):
    import shutil

    shutil.copytree(root, tmp_path / "root")
    path = tmp_path / "root" / "mix.mixture.toml"
    path.write_text("epoch_bins = 120\n[[stages]]\nweights = {web = 1}")
    with_all, with_web = (dataset_of(tmp_path / "root", given) for given in (tokens, {"web": tokens["web"]}))
    all_batches, web_batches = iter(with_all), iter(with_web)
    first = [next(all_batches), next(web_batches)]
    append_to_mixture(path, StageEntry(weights={"chat": 1}), 60, LazyCatalog(path.parent, set()).get)
    rest = list(all_batches)
    assert first[0]["component_names"] == ("web",)
    assert rest[-1]["component_names"] == ("web", "chat")
    assert set(rest[-1]["component_ids"].tolist()) == {1}
    assert rest[-1]["cursor"]["digest"].startswith(first[0]["cursor"]["digest"])
    with pytest.raises(TokenSourceError, match="the mixture's chat has no source of tokens; given are web"):
        list(web_batches)
    metrics = sum(per_component_metrics(torch.ones(batch["labels"].shape), batch) for batch in [first[0], rest[-1]])
    assert metrics.names == ("web", "chat")
    assert metrics.mean_losses.tolist() == [1.0, 1.0]
