"""accelerate's `prepare`: our loader passes as it is; a DataLoader of our dataset is refused where it is dealt out."""

from collections import Counter

import pytest
from accelerate import Accelerator, DataLoaderConfiguration
from tests.flat_words import packed_dataloader
from torch.utils.data import DataLoader

from packhorse.client import PackedDataset


@pytest.fixture
def arguments(corpus):
    return f"embedded:{corpus.root}", "rows", corpus.megatron


def test_a_packed_loader_passes_as_it_is(arguments):
    accelerator = Accelerator(cpu=True)
    options = {"batch_size": 50, "num_workers": 0, "device": accelerator.device}
    loaders = [packed_dataloader(*arguments, rank=rank, world_size=2, **options) for rank in range(2)]
    assert list(accelerator.prepare(*loaders)) == loaders
    assert Counter(i for loader in loaders for batch in loader for i in batch["ids"].tolist()) == Counter(range(2000))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_data_loader_whose_batches_are_dealt_out_is_refused(arguments, num_workers):
    """The default, in which other ranks would wait for ever; it is the same with one rank."""
    started = {"multiprocessing_context": "fork", "timeout": 60} if num_workers else {}
    loader = DataLoader(PackedDataset(*arguments, batch_size=50), batch_size=None, num_workers=num_workers, **started)
    prepared = Accelerator(cpu=True).prepare(loader)
    with pytest.raises(ValueError, match=r"divided over them already; do not pass .*create_packed_dataloader"):
        next(iter(prepared))


def test_a_data_loader_that_is_only_moved_to_the_device_works(arguments):
    """One process with nothing to deal out."""
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=False))
    loader = accelerator.prepare(DataLoader(PackedDataset(*arguments, batch_size=50), batch_size=None))
    assert Counter(i for batch in loader for i in batch["ids"].tolist()) == Counter(range(2000))
