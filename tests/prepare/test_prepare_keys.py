"""Keys of every kind of input, beside a plan that does not know them: appended, cut into shards, grouped, dropped."""

import uuid
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.flat_words import prepare, shard

from packhorse.dataset import PreparedDatasetError, open_prepared, verify_files, versions_of
from packhorse.formats import MegatronWriter
from packhorse.jobs import show_progress

NUM = 700
URLS = [f"https://example.org/ä/{number}?a=1,2#{'x' * (number % 9)}" for number in range(NUM)]
LENGTHS = np.random.default_rng(3).integers(1, 60, NUM).tolist()


def write(path, names, lengths=None, **columns):
    lengths = LENGTHS[: len(names)] if lengths is None else lengths
    pq.write_table(pa.table({"length": lengths, "url": names, **columns}), path, row_group_size=150)
    return path


def keyed(source, output, **options):
    options = {"length_column": "length", "id_column": "url", "max_seq_len": 64, "progress": False, **options}
    prepare(source, output=output, **options)
    return open_prepared(output)


def test_the_digest_knows_no_keys_and_the_checksums_do(tmp_path):
    path = write(tmp_path / "a.parquet", URLS)
    plain = keyed(path, tmp_path / "plain", id_column=None)
    dataset = keyed(path, tmp_path / "keyed")
    assert dataset.manifest.digest == plain.manifest.digest
    assert plain.keys is None
    assert dataset.manifest.id_column is None
    assert not list((tmp_path / "plain").glob("key*"))
    assert {"keys.npy", "key_ends.npy", "key_order.npy"} == {*dataset.manifest.checksums} - {*plain.manifest.checksums}
    assert dataset.keys.of(np.arange(NUM)) == URLS
    assert dataset.keys.ids_of(URLS).tolist() == list(range(NUM))


@pytest.mark.parametrize(
    ("values", "first"),
    [
        (pa.array(URLS[:4], pa.large_string()), URLS[0]),
        (pa.array(URLS[:4], pa.string_view()), URLS[0]),
        (pa.array(URLS[:4]).dictionary_encode(), URLS[0]),
        (pa.array([uuid.UUID(int=n << 64).bytes for n in range(1, 5)], pa.binary(16)), str(uuid.UUID(int=1 << 64))),
        (pa.array([uuid.UUID(int=n).bytes for n in range(1, 5)], pa.uuid()), str(uuid.UUID(int=1))),
        (pa.array([Decimal(2**64 + n) for n in range(4)], pa.decimal128(38, 0)), str(2**64)),
        (pa.array(["two\nlines", " ", "17", "ß"]), "two\nlines"),
    ],
    ids=["large", "view", "dictionary", "binary", "uuid", "decimal", "odd"],
)
def test_any_such_column_names_sequences(tmp_path, values, first):
    table = pa.table({"length": [5, 3, 3, 5], "url": values})
    held = keyed(None, tmp_path / "held", lengths=table)
    assert held.keys.of(np.array([0])) == [first]
    assert held.keys.ids_of([first]).tolist() == [0]
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table.slice(1), max_chunksize=2)
    read = keyed(tmp_path / "a.arrow", tmp_path / "read")
    assert read.keys.of(np.arange(3)) == held.keys.of(np.arange(1, 4))


@pytest.mark.parametrize("values", [["a", None], pa.array([b"x" * 16, None], pa.binary(16))], ids=["text", "uuid"])
def test_a_null_inside_a_dictionary_is_no_key(tmp_path, values):
    values = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(values))
    with pytest.raises(ValueError, match="row 1, column 'url' is null"):
        keyed(None, tmp_path / "out", lengths=pa.table({"length": [5, 3], "url": values}))


def test_a_column_of_large_numbers_holds_keys_and_one_of_small_ones_ids(tmp_path):
    small, large = [3, 5, 2**63 - 1], [4, 2**63, 2**64 - 1]
    write(tmp_path / "a.parquet", pa.array(small, pa.uint64()))
    ids = keyed(tmp_path / "a.parquet", tmp_path / "ids")
    assert ids.keys is None
    assert sorted(ids.pool.tolist()) == small
    write(tmp_path / "b.parquet", pa.array(large, pa.uint64()))
    both = keyed([tmp_path / "a.parquet", tmp_path / "b.parquet"], tmp_path / "both", id_column="url")
    assert both.keys.of(np.arange(6)) == list(map(str, [*small, *large]))


def test_a_shuffled_dataset_of_hugging_face_keeps_its_keys(tmp_path):
    datasets = pytest.importorskip("datasets")
    shuffled = datasets.Dataset.from_dict({"length": LENGTHS, "url": URLS}).shuffle(seed=1).select(range(300))
    dataset = keyed(None, tmp_path / "out", lengths=shuffled)
    assert dataset.keys.of(np.arange(300)) == shuffled["url"][:]


def test_an_append_adds_keys_and_versions_keep_theirs(tmp_path):
    out = tmp_path / "out"
    keyed(write(tmp_path / "a.parquet", URLS[:400]), out)
    grown = keyed(write(tmp_path / "b.parquet", URLS[400:]), out, append=True)
    assert grown.keys.ids_of(URLS).tolist() == list(range(NUM))
    first = open_prepared(versions_of(out)[1].path)
    assert first.keys.ids_of(URLS[398:402]).tolist() == [398, 399, -1, -1]
    for names, options, message in (
        (["new", URLS[7]], {}, "comes twice .row 7 of what out was prepared from; row 1 of .*c.parquet"),
        (["x", "y"], {"id_column": None}, "it has keys of column 'url', and the input gives no keys"),
        ([1, 2], {}, "id_column was None and is url; it has keys of column 'url', and the input gives no keys"),
    ):
        with pytest.raises(ValueError, match=message):
            keyed(write(tmp_path / "c.parquet", names), out, append=True, **options)
    assert open_prepared(out).manifest == grown.manifest


def megatron(folder, names, num_tokens=None):
    with MegatronWriter(folder / "corpus", vocab_size=100, overwrite=True) as writer:
        for length in LENGTHS[: len(names)]:
            writer.append(np.zeros(length, dtype=np.int64))
    facts = None if num_tokens is None else {"packhorse.tokens": str(num_tokens)}
    schema = pa.schema([("key", pa.large_string())], metadata=facts)
    with pa.ipc.new_file(folder / "corpus.keys.arrow", schema) as writer:
        writer.write_table(pa.table({"key": pa.array(names, pa.large_string())}, schema=schema), max_chunksize=99)
    return folder / "corpus.idx"


def test_keys_beside_an_index_are_found_and_grow_with_it(tmp_path):
    out, options = tmp_path / "out", {"length_column": None, "id_column": None}
    keyed(megatron(tmp_path, URLS[:400], sum(LENGTHS[:400])), out, **options)
    grown = keyed(megatron(tmp_path, URLS[:600]), out, append=True, **options)
    assert grown.keys.of(np.arange(600)) == URLS[:600]
    with pytest.raises(ValueError, match="does not hold what out was prepared from"):
        keyed(megatron(tmp_path, [*URLS[1:], URLS[0]]), out, append=True, **options)
    with pytest.raises(ValueError, match="with other tokens than"):
        keyed(megatron(tmp_path, URLS, 5), tmp_path / "other", **options)


def test_shards_keep_the_keys_of_their_sequences(tmp_path):
    path = write(tmp_path / "a.parquet", URLS, part=[f"p{number % 3}" for number in range(NUM)])
    options = {"length_column": "length", "id_column": "url", "max_seq_len": 64, "progress": False, "workers": 1}
    shard(path, name="web", data_root=tmp_path / "root", by="part", **options)
    for part in range(3):
        keys = open_prepared(tmp_path / "root" / f"web-p{part}").keys
        assert keys.ids_of(URLS).tolist() == [number if number % 3 == part else -1 for number in range(NUM)]
        assert keys.of(np.array([part, part + 3, (part + 1) % 3])) == [URLS[part], URLS[part + 3], ""]
    assert not list((tmp_path / "root").glob(".*"))


@pytest.mark.parametrize("options", [{"over_length": "drop"}, {"over_length": "split"}, {"on_bad_row": "skip"}])
def test_sequences_that_are_dropped_split_or_skipped_keep_their_keys(tmp_path, options):
    lengths = [500 if number % 7 == 0 else length for number, length in enumerate(LENGTHS)]
    if "on_bad_row" in options:
        lengths = [0 if length == 500 else length for length in lengths]
    dataset = keyed(write(tmp_path / "a.parquet", URLS, lengths), tmp_path / "out", **options)
    assert dataset.keys.ids_of(URLS).tolist() == list(range(NUM))


def test_groups_have_the_keys_of_their_members(tmp_path):
    path = write(tmp_path / "a.parquet", URLS, [length // 4 + 1 for length in LENGTHS])
    dataset = keyed(path, tmp_path / "out", group_size=2)
    assert dataset.keys.of(dataset.ids) == [URLS[number] for number in dataset.ids.tolist()]


def test_bytes_depend_on_neither_workers_nor_row_groups(tmp_path):
    path = write(tmp_path / "a.parquet", URLS)
    first = keyed(path, tmp_path / "one", workers=1).manifest.checksums
    assert keyed(path, tmp_path / "two", workers=3).manifest.checksums == first


@pytest.mark.parametrize("name", ["keys.npy", "key_ends.npy", "key_order.npy"])
def test_a_damaged_table_is_refused(tmp_path, name):
    dataset = keyed(write(tmp_path / "a.parquet", URLS), tmp_path / "out")
    path = tmp_path / "out" / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(PreparedDatasetError, match=name.partition(".")[0]):
        open_prepared(tmp_path / "out")
    with show_progress(quiet=True) as progress:
        assert [name in line for line in verify_files(dataset, progress)] == [True]
    for damaged in (whole[:-8], b""):
        path.write_bytes(damaged)
        with pytest.raises(PreparedDatasetError, match=name):
            open_prepared(tmp_path / "out", check_pool=False)
    path.unlink()
    with pytest.raises(PreparedDatasetError, match=name):
        open_prepared(tmp_path / "out", check_pool=False)
