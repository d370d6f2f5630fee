"""`MemoryDatasets`: what a user's own test of a trainer needs, and the same bins as from a folder."""

import pickle

import numpy as np
import pytest
from tests import scripts
from tests.flat_words import prepare
from torch.utils.data import DataLoader

from packhorse.client import MemoryDatasets, PackedDataset, connect, create_packed_dataloader
from packhorse.client.errors import DatasetNotFoundError
from packhorse.client.loading.workers.preemption import protected_fork_server

LENGTHS = np.random.default_rng(3).integers(1, 40, 300)
SEQUENCES = [np.arange(length) + number for number, length in enumerate(LENGTHS)]
DATASETS = MemoryDatasets({"documents": SEQUENCES, "few": [5, 3, 3, 5]}, max_seq_len=64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from packhorse.formats import MegatronWriter

    folder = tmp_path_factory.mktemp("memory")
    with MegatronWriter(folder / "documents", vocab_size=1000) as writer:
        for tokens in SEQUENCES:
            writer.append(tokens)
    return folder


@pytest.mark.parametrize(
    "options",
    [{}, {"align": 8, "extra_tokens": 1}, {"over_length": "split", "max_seq_len": 24}, {"max_sequences_per_bin": 3}],
    ids=str,
)
def test_the_same_bins_as_from_a_folder(folder, options):
    options = {"max_seq_len": 64} | options
    name = "-".join(map(str, options.values()))
    prepare(
        folder / "documents.idx", output=folder / name / "documents", algorithm="best-fit", progress=False, **options
    )
    with (
        connect(f"embedded:{folder / name}") as from_folder,
        connect(MemoryDatasets({"documents": LENGTHS}, **options)) as from_memory,
    ):
        digest = from_memory.get_dataset("documents").digest
        assert digest == from_folder.get_dataset("documents").digest
        theirs, ours = (list(client.stream_bins("documents", seed=4, epoch=2)) for client in (from_folder, from_memory))
        for field in ("ids", "lengths", "positions"):
            np.testing.assert_array_equal(*(np.concatenate([getattr(b, field) for b in bs]) for bs in (theirs, ours)))
        sizes = [[len(ids) for block in blocks for ids, _ in block.bins()] for blocks in (theirs, ours)]
        assert sizes[0] == sizes[1]  # how bins are cut into blocks depends on the reader's pace


def test_nothing_is_left_in_the_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with connect(MemoryDatasets({"one": [7, 7]}, max_seq_len=9)) as client:
        assert client.get_dataset("one").num_bins == 2
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("context", ["fork", pytest.param(protected_fork_server(), id="forkserver")])
def test_every_worker_sees_the_same_epoch(context):
    dataset = PackedDataset(DATASETS, "documents", SEQUENCES, batch_size=2, seed=5)
    alone = [batch["ids"].tolist() for batch in dataset]
    assert len(dataset) == len(alone)
    dataset.set_epoch(0)
    workers = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=context)
    assert [batch["ids"].tolist() for batch in workers] == alone
    assert sorted(number for ids in alone for number in ids) == list(range(300))


def test_the_loader_resumes_from_a_cursor():
    def loader():
        return create_packed_dataloader(DATASETS, "documents", SEQUENCES, batch_size=3, num_workers=0, device="cpu")

    batches = list(loader())
    for number, batch in enumerate(batches):
        for row, tokens in zip(batch["input_ids"], batch["attention_mask"], strict=True):
            assert int(tokens.sum()) <= 64
            assert len(row) == 64
        if number == 4:
            resumed = loader()
            resumed.load_state_dict(batch["cursor"])
            rest = list(resumed)
    assert [batch["ids"].tolist() for batch in rest] == [batch["ids"].tolist() for batch in batches[5:]]


def test_it_says_what_it_holds():
    assert repr(DATASETS) == "MemoryDatasets(documents: 300 sequences, few: 4 sequences; max_seq_len=64)"
    assert pickle.loads(pickle.dumps(DATASETS)).key == DATASETS.key
    with connect(DATASETS) as client:
        assert client.target == "memory:documents,few"
        assert [info.name for info in client.list_datasets()] == ["documents", "few"]
        with pytest.raises(DatasetNotFoundError, match="this server has: documents, few"):
            client.get_dataset("many")


LEFT = """
import sys
from packhorse.client import MemoryDatasets, PackedDataset, create_packed_dataloader
datasets = MemoryDatasets({"c": [5] * 400}, max_seq_len=8)
loader = create_packed_dataloader(datasets, "c", [[1] * 5] * 400, batch_size=1, num_workers=0, device="cpu")
for batches in (loader, PackedDataset(datasets, "c", [[1] * 5] * 400, batch_size=1)):
    for batch in batches:
        break
print("left")
"""


def test_a_loop_that_is_left_early_says_nothing():
    done = scripts.run(LEFT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "left\n", "")
