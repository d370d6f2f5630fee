"""What an embedded client reads: the dataset that is asked for, and each file's checksum once."""

import mmap
import multiprocessing
import shutil

import pytest
from torch.utils.data import DataLoader

from packhorse.client import PackedDataset, connect
from packhorse.client.errors import DatasetCorruptError
from packhorse.dataset import POOLS
from packhorse.dataset import load as load_module
from packhorse.server.base.faults import ServiceError
from packhorse.server.datasets import catalog as catalog_module
from packhorse.server.datasets.lazy_catalog import LazyCatalog
from packhorse.storage import SharedSet


@pytest.fixture
def root(corpus, tmp_path):
    for name in ("few", "rows", "named"):
        shutil.copytree(corpus.root / name, tmp_path / "data" / name)
    return tmp_path / "data"


@pytest.fixture
def read(monkeypatch, tmp_path):
    """Function: folder/file of every checksum of an array file, taken in this process or one that it forked."""
    log = tmp_path / "read"
    log.touch()
    sha256_of = load_module.sha256_of

    def logged(path):
        with log.open("a") as file:
            file.write(f"{path.parent.name}/{path.name}\n")
        return sha256_of(path)

    monkeypatch.setattr(load_module, "sha256_of", logged)
    return lambda: log.read_text().split()


def stream(root, name="few"):
    with connect(f"embedded:{root}") as client:
        return [block.ids.tolist() for block in client.stream_bins(name)]


def test_only_the_dataset_that_is_asked_for_is_opened(root, read):
    with connect(f"embedded:{root}") as client:
        assert read() == []
        client.get_dataset("rows")
        assert read() == [f"rows/{POOLS}"]
        assert [info.name for info in client.list_datasets()] == ["few", "named", "rows"]
    assert sorted(read()) == [f"few/{POOLS}", f"named/{POOLS}", f"rows/{POOLS}"]


def test_a_file_is_checked_once_while_it_stays_as_it_is(root, read):
    first = stream(root)
    assert [stream(root) for _ in range(3)] == [first] * 3
    assert read() == [f"few/{POOLS}"]
    (root / "few" / POOLS).touch()
    assert stream(root) == first
    assert read() == [f"few/{POOLS}"] * 2


def test_a_dataset_that_was_replaced_or_altered_is_seen_by_the_next_client(root, read):
    first = stream(root)
    shutil.rmtree(root / "few")
    shutil.copytree(root / "named", root / "few")
    assert stream(root) == stream(root, "named") != first
    data = bytearray((root / "few" / POOLS).read_bytes())
    data[-3] ^= 1
    (root / "few" / POOLS).write_bytes(data)
    with pytest.raises(DatasetCorruptError, match=r"few/pools\.npy does not match its checksum"):
        stream(root)


def test_forked_workers_check_a_file_once_over_all_epochs(root, read, corpus):
    dataset = PackedDataset(f"embedded:{root}", "rows", corpus.megatron, batch_size=4, rank=(0, 1))
    loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="fork")
    num_batches = [sum(1 for _ in loader) for _ in dataset.epochs(3)]
    assert num_batches[0] > 0
    assert len(set(num_batches)) == 1
    assert read() == [f"rows/{POOLS}"]


def test_a_large_pool_is_checked_beside_serving_and_once(root, read, monkeypatch, wait_until):
    monkeypatch.setattr(catalog_module, "CHECK_AT_ONCE_BYTES", 1)
    checked = set()
    catalog = LazyCatalog(root, checked)
    dataset = catalog.get("few")
    wait_until(lambda: len(checked) == 1)
    assert LazyCatalog(root, checked).get("few") is dataset
    assert read() == [f"few/{POOLS}"]


def test_a_large_pool_that_was_altered_is_withdrawn_from_every_catalog(root, monkeypatch, wait_until):
    monkeypatch.setattr(catalog_module, "CHECK_AT_ONCE_BYTES", 1)
    data = bytearray((root / "few" / POOLS).read_bytes())
    data[-3] ^= 1
    (root / "few" / POOLS).write_bytes(data)
    checked = set()
    for _ in range(2):
        catalog = LazyCatalog(root, checked)
        catalog.refresh()
        wait_until(lambda: [dataset.name for dataset in catalog.opened()] == ["named", "rows"])  # noqa: B023
        with pytest.raises(ServiceError, match=r"few/pools\.npy does not match its checksum"):
            catalog.get("few")
    wait_until(lambda: len(checked) == 2)
    assert not any(key.startswith(str(root / "few")) for key in checked)


def test_a_shared_set_is_shared_with_forks_both_ways():
    known = SharedSet()
    known.add("before")

    def child():
        assert "before" in known
        known.add("in the child")

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0
    assert "in the child" in known
    assert "neither" not in known


def test_a_shared_set_that_is_full_forgets_and_never_invents():
    known = SharedSet()
    texts = [f"text {number}" for number in range(mmap.PAGESIZE)]
    for text in texts:
        known.add(text)
        assert text in known
    assert 0 < sum(text in known for text in texts) <= mmap.PAGESIZE // 16
    assert not any(f"other {number}" in known for number in range(mmap.PAGESIZE))
