"""Whatever serves as tokens is prepared as it is, and then trained from: every sequence once, with its tokens."""

import shutil
from collections import Counter
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.flat_words import packed_dataset, prepare

from packhorse.client.sources import MdsSource, TokenSourceError
from packhorse.dataset import open_prepared
from packhorse.formats import MegatronWriter, write_flat_tokens

DATA = Path(__file__).parents[1] / "data"
MAX_SEQ_LEN = 64


def write_arrow(path, table, *, stream=False, **options):
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with new(str(path), table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=7)


@pytest.fixture(scope="module")
def sequences():
    random = np.random.default_rng(11)
    return [random.integers(0, 60_000, length).tolist() for length in random.integers(1, 40, 90)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, sequences):
    """The same sequences in every format; `id` is 1,000 and more."""
    datasets.disable_progress_bars()
    folder = tmp_path_factory.mktemp("inputs")
    names = np.random.default_rng(5).permutation(len(sequences)) + 1000
    table = pa.table({"text": ["x"] * 90, "id": names, "input_ids": pa.array(sequences, pa.list_(pa.uint16()))})
    for kind in ("parquet", "arrow", "links"):
        (folder / kind).mkdir()
    pq.write_table(table, folder / "one.parquet", row_group_size=13)
    for number, part in enumerate((table[:0], table[:40], table[40:])):
        pq.write_table(part, folder / "parquet" / f"{number}.parquet", row_group_size=9)
        write_arrow(folder / "arrow" / f"{number}.arrow", part, stream=number == 1)
    shutil.copytree(folder / "parquet", folder / "table.parquet")  # as Spark writes
    write_arrow(
        folder / "large.arrow", table.set_column(2, "input_ids", table["input_ids"].cast(pa.large_list(pa.uint16())))
    )
    held = datasets.Dataset.from_dict({"input_ids": sequences, "labels": sequences, "id": names})
    held.save_to_disk(folder / "saved", num_shards=3)
    with MegatronWriter(folder / "megatron", vocab_size=60_000) as writer:
        for tokens in sequences:
            writer.append(tokens)
    write_flat_tokens(folder / "flat.bin", sequences, np.uint16)
    shutil.copytree(DATA / "mds", folder / "mds")
    return folder


def trained(folder, name, source, sequences_of, **options):
    dataset = packed_dataset(f"embedded:{folder}", name, source, batch_size=3, **options)
    return sequences_of(list(dataset))


INPUTS = {
    "one.parquet": "Parquet",
    "parquet": "Parquet",
    "parquet/*.parquet": "Parquet",
    "table.parquet": "Parquet",
    "arrow": "Arrow",
    "large.arrow": "Arrow",
    "arrow/*.arrow": "Arrow",
    "saved": "Arrow",
    "megatron.idx": "Megatron",
    "megatron": "Megatron",
    "megatron.bin": "Megatron",
    "flat.bin": "flat",
    "flat.bin.boundaries": "flat",
}


@pytest.mark.parametrize("name", INPUTS)
def test_an_input_is_its_own_token_source(name, folder, sequences, sequences_of, no_launcher, tmp_path):
    manifest = prepare(str(folder / name), max_seq_len=MAX_SEQ_LEN, output=tmp_path / "set", progress=False)
    assert (manifest.inputs.kind, manifest.inputs.rows) == (INPUTS[name], 90)
    assert manifest.total_tokens == sum(map(len, sequences))
    assert trained(tmp_path, "set", str(folder / name), sequences_of) == Counter(map(tuple, sequences))


@pytest.mark.parametrize("name", ["one.parquet", "parquet", "arrow", "saved"])
def test_ids_of_a_column_are_found_in_it(name, folder, sequences, sequences_of, no_launcher, tmp_path):
    prepare(folder / name, id_column="id", max_seq_len=MAX_SEQ_LEN, output=tmp_path / "set", progress=False)
    assert open_prepared(tmp_path / "set").pool.min() == 1000
    assert trained(tmp_path, "set", folder / name, sequences_of) == Counter(map(tuple, sequences))
    with pytest.raises(TokenSourceError, match=r"come from the column 'id'.*holds no ids"):
        trained(tmp_path, "set", folder / "flat.bin", sequences_of)


def test_several_inputs_are_the_list_of_their_files(folder, sequences, sequences_of, no_launcher, tmp_path):
    files = [folder / "parquet" / "2.parquet", folder / "parquet" / "1.parquet"]
    manifest = prepare(files, max_seq_len=MAX_SEQ_LEN, output=tmp_path / "set", progress=False)
    assert [(file.name, file.rows) for file in manifest.inputs.files] == [("2.parquet", 50), ("1.parquet", 40)]
    assert trained(tmp_path, "set", files, sequences_of) == Counter(map(tuple, sequences))


@pytest.mark.parametrize("column", ["input_ids", "any_type", "listed", "fixed"])
def test_mds_shards_of_mosaicml_s_own_package(column, folder, sequences_of, no_launcher, tmp_path):
    tokens = "input_ids" if column == "fixed" else column
    for id_column, output in ((None, "rows"), ("doc_id", "named")):
        manifest = prepare(
            folder / "mds",
            length_column=column,
            id_column=id_column,
            max_seq_len=512,
            output=tmp_path / output,
            progress=False,
        )
        assert (manifest.inputs.kind, manifest.inputs.rows, manifest.id_column) == ("MDS", 5, id_column)
    if column == "fixed":
        assert manifest.total_tokens == 5 * 4  # four in each: no tokens of that length are there to train from
        return
    held = [(7 * np.arange(n) + 1000 * i).tolist() for i, n in enumerate((5, 1, 9, 3, 300))]
    for output in ("rows", "named"):
        found = trained(tmp_path, output, MdsSource(folder / "mds", column=tokens), sequences_of)
        assert found == Counter(map(tuple, held))


def test_datasets_that_python_holds(sequences, sequences_of, no_launcher, tmp_path):
    held = datasets.Dataset.from_dict({"input_ids": sequences, "labels": sequences})
    chosen = held.shuffle(seed=1).select(range(10, 70))
    for name, dataset in (("all", held), ("some", chosen)):
        manifest = prepare(lengths=dataset, max_seq_len=MAX_SEQ_LEN, output=tmp_path / name, progress=False)
        assert (manifest.source, manifest.inputs.kind, manifest.inputs.num_files) == ("Dataset", "Dataset", 0)
        assert trained(tmp_path, name, dataset, sequences_of) == Counter(map(tuple, dataset["input_ids"]))
