"""Batches that cross between processes: equal on the other side, and in one piece of memory."""

import copy
import pickle

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from packhorse.client.loading._parcel import Parcel


def make():
    return Parcel(
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
    assert type(found) is Parcel
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
            yield Parcel(make(), number=torch.tensor(i))


def test_pickle_gives_the_same_in_one_memory():
    parcel = pickle.loads(pickle.dumps(make()))
    assert_equal(parcel, make())
    memory = {value.untyped_storage().data_ptr() for value in parcel.values() if isinstance(value, torch.Tensor)}
    assert len(memory) == 1


def test_order_of_keys_stays():
    assert list(pickle.loads(pickle.dumps(make()))) == list(make())


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_worker_sends_one_storage(context):
    loader = DataLoader(Stream(), batch_size=None, num_workers=1, multiprocessing_context=context, timeout=60)
    for i, parcel in enumerate(loader):
        assert_equal(parcel, Parcel(make(), number=torch.tensor(i)))
        memory = {value.untyped_storage().data_ptr() for value in parcel.values() if isinstance(value, torch.Tensor)}
        assert len(memory) == 1
        assert parcel["ids"].is_shared()
    assert i == 3


def test_a_copy_is_a_parcel_of_its_own():
    parcel = make()
    other = copy.copy(parcel)
    other["max_seqlen"] = 9
    assert_equal(parcel, make())
    assert type(other) is Parcel
    assert other["ids"] is parcel["ids"]


def test_without_tensors():
    assert pickle.loads(pickle.dumps(Parcel(a=1))) == {"a": 1}
