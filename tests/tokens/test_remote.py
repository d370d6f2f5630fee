"""Token files in object stores: the tokens of local ones, through every fault of a store and of the cache on disk."""

import errno
import os
import pickle
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from tests.tokens.faulty import FaultyFileSystem

from packhorse.client import PackedDataset
from packhorse.formats import MegatronTokens, MegatronWriter
from packhorse.formats.object_store import StoreOptions, TokenStoreError, stored_object
from packhorse.formats.retry_policy import RetryPolicy
from packhorse.tokens import RemoteSource, TokenSourceError, as_token_source, fetch_ahead

LENGTHS = np.random.default_rng(4).integers(1, 120, 400)
OPTIONS = StoreOptions(attempt_seconds=0.5, retry=RetryPolicy(deadline_seconds=20, first_delay_seconds=0.01))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A Megatron pair of about 48 KB."""
    prefix = tmp_path_factory.mktemp("store") / "corpus"
    rng = np.random.default_rng(3)
    with MegatronWriter(prefix, vocab_size=60_000) as writer:
        for length in LENGTHS:
            writer.append(rng.integers(0, 60_000, length))
    return prefix.with_suffix(".idx")


@pytest.fixture(autouse=True)
def well():
    FaultyFileSystem.faults[:] = []
    FaultyFileSystem.reads[:] = []


@pytest.fixture
def make(corpus, tmp_path):
    """Function: a source of the corpus, with a cache of its own and blocks of 4 KiB."""

    def make(**options):
        options = {"cache_folder": tmp_path / "cache", "block_bytes": 4096, "options": OPTIONS} | options
        return RemoteSource(f"faulty://{corpus}", **options)

    return make


def all_tokens(source, ids=None):
    ids = np.arange(len(LENGTHS)) if ids is None else ids
    lengths = LENGTHS[ids]
    out = np.zeros(int(lengths.sum()), np.int32)
    source.gather_from(ids, lengths)(0, len(ids), out, np.cumsum(lengths) - lengths)
    return out


@pytest.fixture
def expected(corpus):
    tokens = MegatronTokens(corpus)
    return np.concatenate([tokens.read(i) for i in range(len(tokens))])


def bin_reads():
    return [read for read in FaultyFileSystem.reads if read[0].endswith(".bin")]


def failing(data):
    raise ConnectionResetError("connection reset by peer")


def short(data):
    return data[:-1]


def empty(data):
    return b""


def stalled(data):
    time.sleep(2)
    return data


@pytest.mark.parametrize("fault", [failing, short, empty, stalled])
@pytest.mark.realtime
def test_a_store_that_fails_for_a_while_is_asked_again(make, expected, fault):
    source = make()
    FaultyFileSystem.faults[:] = [fault] * (6 if fault is not stalled else 2)
    assert (all_tokens(source) == expected).all()
    assert not FaultyFileSystem.faults


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (failing, "ConnectionResetError: connection reset by peer"),
        (short, r"EOFError: it gave 4,095 bytes"),
        (stalled, r"TimeoutError: no answer within 0\.05 s"),
    ],
)
@pytest.mark.realtime
def test_one_that_does_not_recover_is_named_with_a_way_out(make, corpus, fault, why):
    options = StoreOptions(
        attempt_seconds=0.05 if fault is stalled else 5,
        retry=RetryPolicy(deadline_seconds=0.3, first_delay_seconds=0.1, most_delay_seconds=0.1),
    )
    source = make(options=options, read_ahead_bytes=0)
    FaultyFileSystem.faults[:] = [fault] * 5000
    bin_url = f"faulty://{corpus.with_suffix('.bin')}"
    with pytest.raises(TokenStoreError, match=rf"{bin_url}: no bytes 0 to 4,096 of .* in \d+ attempts .*{why}.*retry="):
        all_tokens(source)
    FaultyFileSystem.faults[:] = [fault] * 5000
    with pytest.raises(TokenStoreError, match=rf"{bin_url}: no bytes"):  # of blocks that are fetched ahead, too
        all_tokens(make(options=options, read_ahead_bytes=1 << 20))
    time.sleep(0.5)  # blocks that were on their way give up meanwhile, so that no other test sees them


def test_a_server_that_ignores_ranges_is_refused_at_the_first_answer(make, corpus, monkeypatch):
    source = make(read_ahead_bytes=0)
    FaultyFileSystem.faults[:] = [lambda data: corpus.with_suffix(".bin").read_bytes()] * 100
    with pytest.raises(
        TokenStoreError, match=r"corpus\.bin: the server ignores Range requests .* copy the file to a disk"
    ):
        all_tokens(source)
    assert len(bin_reads()) == 1
    FaultyFileSystem.faults.clear()

    info = FaultyFileSystem.info
    monkeypatch.setattr(FaultyFileSystem, "info", lambda *about, **how: {**info(*about, **how), "partial": False})
    with pytest.raises(TokenStoreError, match="the server ignores Range requests"):
        all_tokens(make(read_ahead_bytes=0))
    assert len(bin_reads()) == 1


def test_every_block_is_fetched_once_by_all_processes(make, corpus, expected):
    assert (all_tokens(make()) == expected).all()
    size_bytes = corpus.with_suffix(".bin").stat().st_size
    assert len(bin_reads()) == -(-size_bytes // 4096)
    FaultyFileSystem.reads.clear()
    order = np.random.default_rng(0).permutation(len(LENGTHS))
    again = pickle.loads(pickle.dumps(make()))
    assert (all_tokens(again, order) == np.concatenate([MegatronTokens(corpus).read(i) for i in order])).all()
    assert again.lengths(order).tolist() == LENGTHS[order].tolist()
    assert FaultyFileSystem.reads == []


def test_a_block_that_was_altered_on_disk_is_fetched_again(make, expected, tmp_path):
    all_tokens(make())
    blocks = sorted((tmp_path / "cache").rglob("*.block"))
    damaged = bytearray(blocks[0].read_bytes())
    damaged[100] ^= 1
    for path, content in zip(blocks, (bytes(damaged), b"", blocks[2].read_bytes()[:-20]), strict=False):
        path.write_bytes(content)
    FaultyFileSystem.reads.clear()
    assert (all_tokens(make()) == expected).all()
    assert sorted(begin for _, begin, _ in bin_reads()) == [0, 4096, 8192]
    assert not list((tmp_path / "cache").rglob("*.partial"))


def test_blocks_stay_within_their_limit(make, expected, monkeypatch, tmp_path):
    defaults = fetch_ahead.FetchAhead.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "threads", 1)  # each of several may write a block while one of them looks
    limit = 6 * 4096
    source = make(cache_bytes=limit)
    for _ in range(3):
        assert (all_tokens(source) == expected).all()
        source = make(cache_bytes=limit)
        sizes = [path.stat().st_size for path in (tmp_path / "cache").rglob("*.block")]
        assert 0 < sum(sizes) <= limit + 4096


def make_older(cache):
    """As if a second had passed since blocks were opened."""
    for path in cache.rglob("*.block"):
        opened = path.stat().st_mtime - 1
        os.utime(path, (opened, opened))


def test_the_block_that_was_opened_last_stays(make, tmp_path):
    limit = 4 * 4096 + 9000  # the index counts, too
    source = make(cache_bytes=limit, read_ahead_bytes=0)
    ends = np.cumsum(LENGTHS * 2)
    first_of = [int(np.searchsorted(ends, number * 4096, side="right")) for number in range(8)]
    for number in (0, 1, 2):
        source.read(first_of[number])
        make_older(tmp_path / "cache")
    make(cache_bytes=limit).read(0)  # opens block 0 anew
    make_older(tmp_path / "cache")
    for number in (3, 4):
        source.read(first_of[number])
        make_older(tmp_path / "cache")
    left = {int(path.name[:10]) for path in (tmp_path / "cache").rglob("*.block")}
    assert 0 in left
    assert 1 not in left


def test_what_a_killed_process_left_is_removed_after_an_hour(make, expected, tmp_path):
    source = make(cache_bytes=6 * 4096)
    folder = tmp_path / "cache" / "of an object"
    folder.mkdir()
    old, young = (folder / f".{name}.{number}.partial" for number, name in enumerate(("whole", "0000000001.block")))
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 4000,) * 2)
    assert (all_tokens(source) == expected).all()
    assert (old.exists(), young.exists()) == (False, True)


def test_a_full_disk_costs_the_cache_and_nothing_else(make, expected, monkeypatch, tmp_path, caplog):
    source = make()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("packhorse.tokens.stored.node_cache.os.replace", full)
    assert (all_tokens(source) == expected).all()
    assert "a block is not kept: [Errno 28] No space left on device" in caplog.text
    assert not list((tmp_path / "cache").rglob("*.block"))
    assert not list((tmp_path / "cache").rglob("*.partial"))


@pytest.mark.realtime
def test_reading_ahead_is_bounded_and_in_order(make, wait_until, expected):
    source = make(read_ahead_bytes=3 * 4096)
    ids = np.arange(len(LENGTHS))
    gather = source.gather_from(ids, LENGTHS)
    wait_until(lambda: len(bin_reads()) == 3)
    time.sleep(0.1)
    assert sorted(begin for _, begin, _ in bin_reads()) == [0, 4096, 8192]
    out = np.zeros(len(expected), np.int32)
    starts = np.cumsum(LENGTHS) - LENGTHS
    for first in range(0, len(ids), 50):
        some = slice(first, first + 50)
        gather(first, first + 50, out, starts[some])
    assert (out == expected).all()
    begins = [begin for _, begin, _ in bin_reads()]
    assert sorted(begins) == sorted(set(begins))


def test_what_is_not_expected_any_more_is_not_fetched(make, wait_until):
    source = make(read_ahead_bytes=4096)
    gate = threading.Event()

    def held_up(data):
        gate.wait(5)
        return data

    FaultyFileSystem.faults[:] = [held_up]
    source.gather_from(np.arange(300), LENGTHS[:300])
    wait_until(lambda: len(bin_reads()) == 1)
    source.gather_from(np.arange(399, 400), LENGTHS[399:])
    gate.set()
    wait_until(lambda: len(bin_reads()) == 2)
    time.sleep(0.05)
    assert len(bin_reads()) == 2


def test_another_version_of_the_object_is_another_object(make, corpus, tmp_path):
    """Its blocks are not mixed with those of the first."""
    moved = tmp_path / "moved"
    moved.mkdir()
    for suffix in (".bin", ".idx"):
        (moved / f"corpus{suffix}").write_bytes(corpus.with_suffix(suffix).read_bytes())
    url = f"faulty://{moved}/corpus"
    first = RemoteSource(url, cache_folder=tmp_path / "cache", options=OPTIONS).read(5).copy()
    data = bytearray((moved / "corpus.bin").read_bytes())
    os.utime(moved / "corpus.bin", (1, 1))
    (moved / "corpus.bin").write_bytes(bytes(255 - byte for byte in data))
    second = RemoteSource(url, cache_folder=tmp_path / "cache", options=OPTIONS).read(5)
    assert (second == np.invert(first)).all()


def test_an_object_that_is_replaced_while_it_is_read_is_refused(corpus, tmp_path, monkeypatch):
    """Its size is the same, so only its version tells; blocks in the cache are still those of the first."""
    for suffix in (".bin", ".idx"):
        (tmp_path / f"corpus{suffix}").write_bytes(corpus.with_suffix(suffix).read_bytes())
    source = RemoteSource(
        f"faulty://{tmp_path}/corpus", cache_folder=tmp_path / "cache", block_bytes=512, options=OPTIONS
    )
    first = source.read(5).copy()
    data = (tmp_path / "corpus.bin").read_bytes()
    (tmp_path / "corpus.bin").write_bytes(bytes(255 - byte for byte in data))
    os.utime(tmp_path / "corpus.bin", (1, 1))
    monkeypatch.setattr(stored_object, "_LOOK_EVERY_SECONDS", 0)
    with pytest.raises(TokenStoreError, match=r"corpus\.bin was replaced while it was read; restart"):
        source.read(399)
    assert (source.read(5) == first).all()


@pytest.mark.parametrize(
    ("before", "now", "is_replaced"),
    [
        ({"size": 5, "ETag": "a"}, {"size": 5, "ETag": "a"}, False),
        ({"size": 5, "ETag": "a"}, {"size": 5, "ETag": "b"}, True),
        ({"size": 5, "ETag": "a"}, {"size": 6, "ETag": "a"}, True),
        ({"size": 5, "ETag": "a", "mtime": 1}, {"size": 5, "ETag": "b", "mtime": 1}, False),
        ({"size": 5, "ETag": "a", "mtime": 1}, {"size": 5, "ETag": "b", "mtime": 2}, True),
        ({"size": 5}, {"size": 5}, False),
    ],
)
def test_one_equal_fact_says_that_an_object_is_the_same(before, now, is_replaced):
    assert stored_object._is_replaced(before, now) is is_replaced


def test_a_dataset_survives_its_store(corpus, tmp_path):
    """Batches are those of the local file, while every third read fails, with workers that read for themselves."""
    from tests.flat_words import prepare

    prepare(corpus, max_seq_len=256, output=tmp_path / "data" / "set", progress=False)

    def rows(tokens):
        dataset = PackedDataset(f"embedded:{tmp_path / 'data'}", "set", tokens, batch_size=4, rank=(0, 1))
        return [batch["input_ids"].tolist() for batch in dataset]

    source = RemoteSource(f"faulty://{corpus}", cache_folder=tmp_path / "cache", block_bytes=512, options=OPTIONS)
    FaultyFileSystem.faults[:] = [short, lambda data: data, failing] * 20
    assert rows(source) == rows(corpus)
    assert len(FaultyFileSystem.faults) < 60


@pytest.mark.parametrize(
    ("url", "error", "wrong"),
    [
        ("file:///nowhere/corpus.idx", FileNotFoundError, r"file:///nowhere/corpus\.bin: .*correct the URL"),
        ("file:///nowhere/corpus", TokenSourceError, r"neither .*corpus\.idx \(Megatron\) nor .*corpus\.boundaries"),
        (
            "nothing://bucket/corpus.idx",
            ValueError,
            r"nothing://bucket/corpus\.bin: .*install a file system for such URLs",
        ),
        ("gs://bucket/corpus.idx", ImportError, r"gs://bucket/corpus\.bin: .*gcsfs for gs://"),
    ],
)
def test_urls_that_lead_nowhere(url, error, wrong, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(error, match=wrong):
        as_token_source(url)


def test_numbers_out_of_range(corpus, tmp_path):
    for wrong in ({"cache_bytes": 0}, {"block_bytes": 0}, {"read_ahead_bytes": -1}):
        with pytest.raises(ValueError, match="must be at least"):
            RemoteSource(f"faulty://{corpus}", cache_folder=tmp_path, **wrong)


_READING = """
import sys
import numpy as np
from packhorse.client.sources import RemoteSource
source = RemoteSource(sys.argv[1], cache_folder=sys.argv[2], block_bytes=4096)
print(sum(int(source.read(i).astype(np.int64).sum()) for i in range(len(source))))
"""


@pytest.mark.long
def test_processes_share_the_cache(corpus, expected, tmp_path):
    command = [sys.executable, "-c", _READING, f"file://{corpus}", str(tmp_path / "cache")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert {process.communicate()[0].strip() for process in running} == {str(expected.astype(np.int64).sum())}
    size_bytes = corpus.with_suffix(".bin").stat().st_size
    assert len(list((tmp_path / "cache").rglob("*.block"))) == -(-size_bytes // 4096)
