"""Which datasets are served: good ones, whatever lies beside them, and those that appear later."""

import errno
import os
import re
import shutil
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests import commands
from tests.flat_words import prepare
from tests.waiting import time_with

from packhorse.client import PackhorseError, RetryPolicy, connect
from packhorse.client.errors import DatasetCorruptError, DatasetNotFoundError
from packhorse.dataset import POOLS, PreparedDatasetError, open_prepared
from packhorse.server.base.faults import RETRY_AFTER_SECONDS, ServiceError
from packhorse.server.datasets import catalog as catalog_module
from packhorse.server.datasets import catalog_records
from packhorse.server.datasets.catalog import Catalog
from packhorse.server.datasets.stamps import ArrayStamps, stamps_of


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


def test_a_dataset_that_a_crash_left_aside_is_told_of_until_it_is_back(root, caplog):
    shutil.copytree(root / "good", root / "other")
    (root / "good").rename(root / ".good.replaced")
    catalog = Catalog(root)
    told = "good was being replaced when the machine went down.* `mv .good.replaced good` there gives it its name back"
    assert re.search(told, caplog.text)
    with pytest.raises(ServiceError, match=told):
        catalog.get("good")
    assert catalog.names() == ["other"]
    (root / ".good.replaced").rename(root / "good")
    assert catalog.names() == ["good", "other"]


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
    with connect(f"embedded:{root}") as client, pytest.raises(DatasetCorruptError, match=r"good/pools\.npy"):
        client.get_dataset("good")
    with pytest.raises(PackhorseError, match="no prepared dataset below"):
        connect(f"embedded:{root / 'empty'}")


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
    with pytest.raises(Exception, match=r"dataset 'bad' is not served: bad/pools\.npy does not match"):
        catalog.get("bad")


def test_an_open_dataset_stays_as_it_is_when_its_folder_goes(root, joined):
    with connect(f"embedded:{root}") as client:
        before = joined(client.stream_bins("good"))
        shutil.rmtree(root / "good")
        assert joined(client.stream_bins("good")) == before


def test_a_refused_folder_is_looked_at_again_when_it_changes(corpus, root):
    """As when a dataset is copied in, and somebody asks before all of it is there."""
    folder = root / "arriving"
    folder.mkdir()
    shutil.copy(corpus.root / "few" / "manifest.json", folder)
    with connect(f"embedded:{root}") as client:
        with pytest.raises(DatasetCorruptError, match="is missing"):
            client.get_dataset("arriving")
        for name in ("counts.json", "templates.json", POOLS):
            shutil.copy(corpus.root / "few" / name, folder)
        assert client.get_dataset("arriving").num_sequences == 7
        assert "arriving" in [info.name for info in client.list_datasets()]


def test_a_refused_folder_is_read_once(root, monkeypatch):
    flip_a_bit(shutil.copytree(root / "good", root / "bad") / POOLS)
    catalog = Catalog(root)
    opened = []
    monkeypatch.setattr(catalog_module, "open_prepared", lambda *args, **options: opened.append(args))
    for _ in range(3):
        with pytest.raises(ServiceError, match="does not match its checksum"):
            catalog.get("bad")
    assert opened == []


@pytest.mark.parametrize("error", [KeyError("x"), RecursionError("deep"), MemoryError()])
def test_a_folder_that_cannot_be_opened_for_any_reason_costs_only_itself(corpus, root, monkeypatch, error):
    shutil.copytree(corpus.root / "few", root / "odd")

    def open_or_fail(folder, **options):
        if folder.name == "odd":
            raise error
        return open_prepared(folder, **options)

    monkeypatch.setattr(catalog_module, "open_prepared", open_or_fail)
    catalog = Catalog(root)
    assert catalog.names() == ["good"]
    with pytest.raises(ServiceError, match=r"odd cannot be opened: \w+; the server's log"):
        catalog.get("odd")


def test_a_folder_that_the_system_failed_to_read_is_tried_again(corpus, root, monkeypatch, caplog):
    shutil.copytree(corpus.root / "few", root / "odd")
    fails = [True]

    def open_or_fail(folder, **options):
        if fails and folder.name == "odd":
            raise OSError(errno.EIO, "Input/output error")
        return open_prepared(folder, **options)

    monkeypatch.setattr(catalog_module, "open_prepared", open_or_fail)
    catalog = Catalog(root)
    with pytest.raises(ServiceError, match="odd cannot be read: Input/output error"):
        catalog.get("odd")
    fails.clear()
    with pytest.raises(ServiceError, match="odd cannot be read"):
        catalog.get("odd")  # not for every caller
    now = time.monotonic()
    clock = time_with(monotonic=lambda: now + catalog_module.TRY_AGAIN_SECONDS)
    monkeypatch.setattr(catalog_module, "time", clock)
    monkeypatch.setattr(catalog_records, "time", clock)
    fails.append(True)
    catalog.names()
    assert sum("not serving odd" in line for line in caplog.messages) == 1
    fails.clear()
    now += catalog_module.TRY_AGAIN_SECONDS
    assert catalog.names() == ["good", "odd"]
    assert catalog.get("odd").name == "odd"


def test_a_lack_of_descriptors_is_not_called_corrupt(corpus, root, monkeypatch):
    shutil.copytree(corpus.root / "few", root / "odd")
    catalog = Catalog(root)
    good = catalog.get("good")
    shutil.copytree(corpus.root / "few", root / "later")

    def fail(*given, **options):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(catalog_module, "open_prepared", fail)
        for _ in range(2):  # by its own try, and while the try of another is remembered
            with pytest.raises(ServiceError, match="limit of open files") as caught:
                catalog.get("later")
            assert caught.value.retry_after_seconds == RETRY_AFTER_SECONDS
    with monkeypatch.context() as patched:
        patched.setattr(catalog_module, "find_folders", fail)
        with pytest.raises(ServiceError, match="limit of open files"):
            catalog.get("unknown")
    with monkeypatch.context() as patched:
        patched.setattr(ArrayStamps, "is_unchanged", lambda self: False)
        patched.setattr(ArrayStamps, "check_again", fail)
        with pytest.raises(ServiceError, match="limit of open files"):
            catalog.confirm(good)
    assert catalog.get("good") is good  # not withdrawn


def test_arrays_that_cannot_all_be_opened_leave_no_descriptor(root, monkeypatch):
    dataset = Catalog(root).get("good")
    shutil.copyfile(root / "good" / POOLS, root / "good" / "a.npy")
    dataset.manifest.checksums["a.npy"] = dataset.manifest.checksums["z.npy"] = "0"
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        ArrayStamps.of(dataset)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_open_datasets_are_listed_where_the_root_cannot_be_read(root):
    catalog = Catalog(root)
    root.rename(root.with_name("away"))
    assert catalog.names() == ["good"]


def test_a_file_that_may_be_read_again_is_noticed(root):
    refused, before = root / "good" / POOLS, stamps_of(root / "good")
    refused.chmod(0)
    assert stamps_of(root / "good") != before
    refused.chmod(0o644)


def test_opening_one_dataset_holds_up_no_other(corpus, root, monkeypatch):
    catalog = Catalog(root)
    shutil.copytree(corpus.root / "few", root / "slow")
    shutil.copytree(corpus.root / "few", root / "quick")
    began, may_end = threading.Event(), threading.Event()

    def open_slowly(folder, **options):
        if folder.name == "slow":
            began.set()
            assert may_end.wait(60)
        return open_prepared(folder, **options)

    monkeypatch.setattr(catalog_module, "open_prepared", open_slowly)
    slow = threading.Thread(target=catalog.get, args=("slow",))
    slow.start()
    assert began.wait(60)
    assert catalog.get("good").name == "good"
    assert catalog.get("quick").name == "quick"
    assert [dataset.name for dataset in catalog.opened()] == ["good", "quick"]
    may_end.set()
    slow.join(60)
    assert [dataset.name for dataset in catalog.opened()] == ["good", "quick", "slow"]


def test_a_message_names_few_datasets(corpus, root):
    for number in range(40):
        shutil.copytree(corpus.root / "few", root / f"{number}-{'long' * 5}")
    with connect(f"embedded:{root}") as client, pytest.raises(DatasetNotFoundError) as caught:
        client.get_dataset("x" * 10_000)
    assert "and 33 more" in str(caught.value)
    assert len(str(caught.value)) < 1500


def test_a_pool_that_is_written_to_is_withdrawn_unless_it_still_matches(root):
    catalog = Catalog(root)
    dataset = catalog.get("good")
    catalog.confirm(dataset)
    pools = root / "good" / POOLS
    pools.touch()
    catalog.confirm(dataset)  # the same bytes, written anew
    flip_a_bit(pools)
    with pytest.raises(ServiceError, match=r"good/pools\.npy was cut or altered while it was served"):
        catalog.confirm(dataset)
    assert catalog.opened() == []
    flip_a_bit(pools)  # restored
    assert catalog.get("good") is not dataset
    with pytest.raises(ServiceError, match="withdrawn"):
        catalog.confirm(dataset)  # streams of the old one end


def test_a_pool_cut_under_running_streams_costs_its_own_dataset_only(corpus, root, make_server, joined):
    lengths = np.random.default_rng(0).integers(1, 100, 4_000_000)  # more than buffers hold
    pq.write_table(pa.table({"length": lengths}), root / "cut.parquet")
    prepare(root / "cut.parquet", length_column="length", output=root / "cut", max_seq_len=256, progress=False)
    with make_server(root) as server, connect(server.target, retry=RetryPolicy(deadline_seconds=30)) as client:
        expected = joined(client.stream_bins("good"))
        running = [client.stream_bins("cut", epoch=epoch) for epoch in range(8)]
        for stream in running:
            next(stream)
        os.truncate(root / "cut" / POOLS, 200)
        for stream in running:
            with pytest.raises(DatasetCorruptError, match=r"cut/pools\.npy was cut or altered"):
                for _ in stream:
                    pass
        for epoch in range(20, 28):
            with pytest.raises(DatasetCorruptError):
                client.get_bins("cut", epoch=epoch, positions=[0])
        assert joined(client.stream_bins("good")) == expected
        assert server.process.poll() is None


def test_reading_a_mapped_file_beyond_its_new_end_gives_zeros(tmp_path):
    """In a process of its own, which would die of SIGBUS otherwise."""
    script = """
import os, sys, threading
import numpy as np
from packhorse.server.base.shrinking_files import survive_shrinking_files
assert survive_shrinking_files()
np.ones(1_000_000, dtype=np.uint32).tofile(sys.argv[1])
mapped = np.memmap(sys.argv[1], dtype=np.uint32, mode="r")
os.truncate(sys.argv[1], 40_000)
sums = []
threads = [threading.Thread(target=lambda: sums.append(int(mapped.sum()))) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert sums == [10_000] * 4, sums
"""
    done = commands.run(tmp_path / "mapped", code=script)
    assert done.returncode == 0, done.stderr


def test_links_that_lead_out_of_the_root_are_refused(corpus, root, embedded):
    outside = root.parent / "outside"
    shutil.copytree(corpus.root / "few", outside)
    (root / "linked").symlink_to(outside)
    shutil.copytree(corpus.root / "few", root / "half")
    (root / "half" / POOLS).unlink()
    (root / "half" / POOLS).symlink_to(outside / POOLS)
    (root / "same").symlink_to(root / "good")
    catalog = Catalog(root)
    assert catalog.names() == ["good", "same"]
    for name, what in (("linked", "linked"), ("half", f"half/{POOLS}")):
        with pytest.raises(ServiceError, match=f"{what} is a link that leads out of the data root") as caught:
            catalog.get(name)
        assert str(root.parent) not in caught.value.message
    with connect(f"embedded:{root}") as client:  # with the rights of whoever asks
        assert client.get_dataset("linked").num_sequences == 7


@pytest.fixture
def common_root(corpus):
    """A data root with two datasets; the one that reads it is not the superuser, who may look into everything."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        shutil.copytree(corpus.root / "rows", root / "rows")
        shutil.copytree(corpus.root / "few", root / "few")
        for path in (root, *root.rglob("*")):
            path.chmod(0o755)
        is_superuser = os.geteuid() == 0
        if is_superuser:
            os.chown(root / "few", NOBODY, NOBODY)
            os.seteuid(NOBODY)
        try:
            yield root
        finally:
            (root / "few").chmod(0o755)
            if is_superuser:
                os.seteuid(0)


NOBODY = 65534


def test_a_folder_that_nobody_may_look_into_costs_only_itself(common_root, caplog):
    (common_root / "few").chmod(0)
    catalog = Catalog(common_root)
    assert (catalog.names(), catalog.names()) == (["rows"], ["rows"])
    assert sum("not serving few" in line for line in caplog.messages) == 1
    with pytest.raises(ServiceError, match="few cannot be read: Permission denied"):
        catalog.get("few")
    with pytest.raises(ServiceError, match=r"this server has: rows$"):
        catalog.get("other")
    (common_root / "few").chmod(0o755)
    assert catalog.names() == ["few", "rows"]
    (common_root / "few").chmod(0)
    assert catalog.names() == ["few", "rows"]  # it is open
    assert catalog.get("few").name == "few"


def test_what_a_file_system_keeps_for_itself_is_no_dataset(root, caplog):
    shutil.copytree(root / "good", root / "lost+found")
    assert Catalog(root).names() == ["good"]
    assert not caplog.messages
