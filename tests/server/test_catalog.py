"""Which datasets are served: good ones, whatever lies beside them, and those that appear later."""

import shutil

import pytest

from packhorse.client import DatasetCorruptError, DatasetNotFoundError, PackhorseError, connect
from packhorse.dataset import POOLS, PreparedDatasetError
from packhorse.server import catalog as catalog_module
from packhorse.server.catalog import Catalog


def flip_a_bit(path, at=-3):
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


@pytest.fixture
def root(corpus, tmp_path):
    """A data root with one good dataset, and things that are none."""
    root = tmp_path / "data"
    shutil.copytree(corpus.root / "rows", root / "good")
    (root / "notes.txt").write_text("no dataset")
    (root / "empty").mkdir()
    shutil.copytree(corpus.root / "few", root / ".few.partial")
    return root


def test_a_server_serves_the_good_dataset_and_says_that_the_other_is_corrupt(corpus, root, make_server, embedded):
    shutil.copytree(corpus.root / "named", root / "bad")
    flip_a_bit(root / "bad" / POOLS)
    with make_server(root) as server, connect(server.target) as client:
        assert [info.name for info in client.list_datasets()] == ["good"]
        for call in (
            lambda: client.get_dataset("bad"),
            lambda: next(client.stream_bins("bad")),
            lambda: client.get_bins("bad", positions=[0]),
            lambda: client.locate("bad", ids=[0]),
        ):
            with pytest.raises(DatasetCorruptError, match=r"bad/pools\.npy does not match its checksum") as caught:
                call()
            assert caught.value.metadata == {"dataset": "bad"}
            assert str(root) not in str(caught.value)
        expected = list(embedded.stream_bins("rows"))
        assert [b.ids.tolist() for b in client.stream_bins("good")] == [b.ids.tolist() for b in expected]

        with pytest.raises(DatasetNotFoundError):
            client.get_dataset("later")
        shutil.copytree(corpus.root / "few", root / "arriving")
        (root / "arriving").rename(root / "later")
        assert client.get_dataset("later").num_sequences == 7
        assert sum(len(block.ids) for block in client.stream_bins("later")) == 7
        shutil.copytree(corpus.root / "few", root / "last")
        assert [info.name for info in client.list_datasets()] == ["good", "last", "later"]


@pytest.mark.parametrize("file", ["counts.json", "manifest.json", "pools.npy", "templates.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "folder"])
def test_every_kind_of_damage_withdraws_one_dataset_only(corpus, root, file, damage):
    shutil.copytree(corpus.root / "few", root / "bad")
    path = root / "bad" / file
    if damage == "flip":
        flip_a_bit(path)
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-8])
    else:
        path.unlink()
    if damage == "folder":
        path.mkdir()
    with connect(f"embedded:{root}") as client:
        assert [info.name for info in client.list_datasets()] == ["good"]
        wanted = DatasetNotFoundError if (file, damage) == ("manifest.json", "remove") else DatasetCorruptError
        with pytest.raises(wanted) as caught:
            client.get_dataset("bad")
        assert str(root) not in str(caught.value)


def test_roots_that_cannot_be_served(root, tmp_path):
    with pytest.raises(PreparedDatasetError, match="is not a folder"):
        Catalog(tmp_path / "nothing")
    with pytest.raises(PreparedDatasetError, match=r"no prepared dataset below .*packhorse prepare --output"):
        Catalog(root / "empty")
    flip_a_bit(root / "good" / POOLS)
    with pytest.raises(PreparedDatasetError, match=r"can be served: good/pools\.npy does not match"):
        Catalog(root)
    with pytest.raises(PackhorseError, match=r"good/pools\.npy"):
        connect(f"embedded:{root}")


def test_names_are_those_of_folders(corpus):
    assert Catalog(corpus.root).names() == ["few", "named", "rows", "truncated"]
    assert Catalog(corpus.root / "few").names() == ["few"]


def test_a_large_pool_is_checked_beside_serving(root, monkeypatch, wait_until, corpus):
    monkeypatch.setattr(catalog_module, "CHECK_AT_ONCE_BYTES", 100)
    shutil.copytree(corpus.root / "named", root / "bad")
    flip_a_bit(root / "bad" / POOLS)
    catalog = Catalog(root)
    wait_until(lambda: [dataset.name for dataset in catalog.opened()] == ["good"])
    assert catalog.names() == ["good"]
    with pytest.raises(Exception, match=r"dataset 'bad' is not served: pools\.npy does not match"):
        catalog.get("bad")


def test_an_open_dataset_stays_as_it_is_when_its_folder_goes(root, joined):
    with connect(f"embedded:{root}") as client:
        before = joined(client.stream_bins("good"))
        shutil.rmtree(root / "good")
        assert joined(client.stream_bins("good")) == before
