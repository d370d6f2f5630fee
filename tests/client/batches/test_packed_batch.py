"""PackedBatch: equal on the other side of a process, a device or a file, and in one memory."""

import copy
import pickle

import pytest
import torch
from tests import scripts
from tests.flat_words import packed_dataset
from torch.utils.data import DataLoader, IterableDataset

from packhorse.client import MemoryDatasets, PackedBatch
from packhorse.client.batches import layout, saved
from packhorse.client.loading.workers.preemption import protected_fork_server


def make():
    return PackedBatch(
        ids=torch.arange(6).view(2, 3),
        half=torch.tensor([1.5, 2.5], dtype=torch.bfloat16),
        odd=torch.tensor([True, False, True]),
        none=torch.empty(0, 4, dtype=torch.int32),
        scalar=torch.tensor(7.0),
        strided=torch.arange(12).view(3, 4).T,
        max_seqlen=3,
        cursor={"epoch": 1},
    )


def assert_equal(found, expected):
    assert type(found) is type(expected)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert found[name].dtype == value.dtype
            assert torch.equal(found[name], value)
        else:
            assert found[name] == value


class Stream(IterableDataset):
    def __iter__(self):
        for i in range(4):
            yield PackedBatch(make(), number=torch.tensor(i))


def test_pickle_gives_the_same_in_one_memory():
    batch = pickle.loads(pickle.dumps(make()))
    assert_equal(batch, make())
    memory = {value.untyped_storage().data_ptr() for value in batch.values() if isinstance(value, torch.Tensor)}
    assert len(memory) == 1


def test_order_of_keys_stays():
    assert list(pickle.loads(pickle.dumps(make()))) == list(make())


@pytest.mark.parametrize("context", ["fork", pytest.param(protected_fork_server(), id="forkserver")])
def test_a_worker_sends_one_storage(context):
    loader = DataLoader(Stream(), batch_size=None, num_workers=1, multiprocessing_context=context, timeout=60)
    for i, batch in enumerate(loader):
        assert_equal(batch, PackedBatch(make(), number=torch.tensor(i)))
        memory = {value.untyped_storage().data_ptr() for value in batch.values() if isinstance(value, torch.Tensor)}
        assert len(memory) == 1
        assert batch["ids"].is_shared()
    assert i == 3


def test_a_copy_is_a_batch_of_its_own():
    batch = make()
    other = copy.copy(batch)
    other["max_seqlen"] = 9
    assert_equal(batch, make())
    assert type(other) is PackedBatch
    assert other["ids"] is batch["ids"]


def test_without_tensors():
    assert pickle.loads(pickle.dumps(PackedBatch(a=1))) == {"a": 1}


LENGTHS = [5, 3, 3, 5]
TOKENS = [list(range(1, length + 1)) for length in LENGTHS]


def packed(**options):
    """A batch with padding inside rooms, so that its layout has all there is."""
    memory = MemoryDatasets({"corpus": LENGTHS}, max_seq_len=8, align=4)
    return next(iter(packed_dataset(memory, "corpus", TOKENS, batch_size=2, rank=0, world_size=1, **options)))


@pytest.mark.parametrize("preset", [None, "trl", "rows"])
def test_torch_load_reads_a_saved_batch_by_default(tmp_path, preset):
    batch = packed(preset=preset)
    torch.save({"batch": batch}, tmp_path / "batch.pt")
    loaded = torch.load(tmp_path / "batch.pt")["batch"]
    assert_equal(loaded, batch)
    assert loaded["cursor"] == batch["cursor"]


def test_a_batch_is_read_that_was_saved_when_restoring_was_in_another_module(tmp_path, monkeypatch):
    batch = packed()
    with monkeypatch.context() as earlier:
        earlier.setattr(layout, "restored", saved.restored, raising=False)
        earlier.setattr(saved.restored, "__module__", layout.__name__)
        torch.save(batch, tmp_path / "batch.pt")
    assert not hasattr(layout, "restored")
    assert_equal(torch.load(tmp_path / "batch.pt"), batch)


def test_masks_are_made_of_a_loaded_batch(tmp_path):
    from packhorse.client.masks import build_boolean_mask

    batch = packed()
    torch.save(batch, tmp_path / "batch.pt")
    loaded = torch.load(tmp_path / "batch.pt", weights_only=True)
    assert repr(loaded) == repr(batch)
    assert loaded["layout"].lengths.flags.writeable
    masks = [build_boolean_mask(each, "cpu", causal=True) for each in (batch, loaded)]
    assert torch.equal(*masks)


def test_another_process_reads_a_batch_once_it_knows_the_class(tmp_path):
    torch.save(packed(), tmp_path / "batch.pt")
    code = f"""
import torch
from packhorse.client import PackedBatch
batch = torch.load({str(tmp_path / "batch.pt")!r})
assert type(batch) is PackedBatch and batch["layout"].num_rows == 2, batch
"""
    done = scripts.run(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.shelf
def test_batches_of_rollouts_and_pairs_are_packed_batches_too(tmp_path):
    from packhorse.rollouts import Rollouts, pack_pairs, pack_rollouts

    batches = [
        *pack_rollouts(Rollouts(queries=[[1, 2]], responses=[[7, 8]], advantages=[0.5]), max_seq_len=5, pad_token_id=0),
        *pack_pairs([[1, 2]], [[7, 8]], [[9]], max_seq_len=8, pad_token_id=0),
    ]
    torch.save(batches, tmp_path / "batches.pt")
    for loaded, batch in zip(torch.load(tmp_path / "batches.pt"), batches, strict=True):
        assert isinstance(loaded, PackedBatch)
        assert repr(loaded) == repr(batch)
        assert (loaded["groups"].numbers == batch["groups"].numbers).all()


def test_to_a_device():
    batch = packed()
    moved = batch.to("meta")
    assert type(moved) is PackedBatch
    assert all(moved[name].device.type == "meta" for name, value in batch.items() if torch.is_tensor(value))
    assert (moved["layout"], moved["cursor"], moved["max_seqlen"]) == (batch["layout"], batch["cursor"], 5)
    assert batch["input_ids"].device.type == "cpu"
    assert batch.to(torch.device("cpu"), non_blocking=True)["ids"] is batch["ids"]


def test_pinned_memory(monkeypatch):
    """As a DataLoader asks for it, without a device that has any."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 1)
    batch = packed()
    pinned = batch.pin_memory()
    assert type(pinned) is PackedBatch
    assert torch.equal(pinned["ids"], batch["ids"] + 1)


def test_transformers_and_accelerate_move_it():
    from accelerate.utils import send_to_device

    moved = send_to_device(packed(), torch.device("meta"), non_blocking=True)
    assert type(moved) is PackedBatch
    assert moved["input_ids"].device.type == "meta"


def test_its_name_says_whose_keys_it_has():
    for preset, name in ((None, "PackedBatch"), ("trl", "Batch")):
        assert repr(packed(preset=preset)).startswith(f"<{name}: ")
        assert type(packed(preset=preset)).__name__ == name
