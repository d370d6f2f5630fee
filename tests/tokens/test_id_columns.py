"""Ids that come from a column of the input: matched by that column, or refused."""

from collections import Counter

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.flat_words import packed_dataset, prepare

from packhorse.client import PackedDataset
from packhorse.client.sources import ArrowSource, IndexableSource, ParquetSource, TokenSourceError
from packhorse.formats import MegatronWriter, write_flat_tokens

ROWS, LENGTH = 120, 12


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The same sequences in every format, all of one length, so that no length tells a wrong one."""
    folder = tmp_path_factory.mktemp("id-columns")
    random = np.random.default_rng(3)
    tokens = random.integers(0, 1000, (ROWS, LENGTH))
    names = random.permutation(ROWS)  # all are row numbers too, of other rows
    table = pa.table({"tokens": list(tokens), "n": [LENGTH] * ROWS, "name": names})
    for number, part in enumerate((table[:50], table[50:])):
        pq.write_table(part, folder / f"table-{number}.parquet", row_group_size=16)
    pq.write_table(table.drop_columns("name"), folder / "nameless.parquet")
    pq.write_table(table.set_column(2, "name", pa.array(names.astype(str).tolist())), folder / "words.parquet")
    pq.write_table(table.rename_columns(["tokens", "n", "key"]), folder / "renamed.parquet")
    pq.write_table(table.set_column(2, "name", pa.array([5, 5, *range(6, 4 + ROWS)])), folder / "twice.parquet")
    with pa.OSFile(str(folder / "table.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    with MegatronWriter(folder / "megatron", vocab_size=1000) as writer:
        for row in tokens:
            writer.append(row)
    write_flat_tokens(folder / "flat.bin", list(tokens), np.uint16)
    for output, options in (("named", {"id_column": "name"}), ("numbered", {})):
        prepare(
            folder / "table-*.parquet",
            length_column="n",
            output=folder / "root" / output,
            max_seq_len=64,
            progress=False,
            **options,
        )
    return folder, tokens, names


@pytest.fixture
def came(files, no_launcher):
    """Function: Counter of (id, tokens) in an epoch."""
    folder, _, _ = files

    def go_through(source, name="named", **options):
        dataset = packed_dataset(f"embedded:{folder / 'root'}", name, source, batch_size=4, **options)
        seen = Counter()
        for batch in dataset:
            rows = batch["input_ids"][batch["attention_mask"].bool()].view(-1, LENGTH).tolist()
            seen.update(zip(batch["ids"].tolist(), map(tuple, rows), strict=True))
        return seen

    return go_through


@pytest.mark.parametrize("kind", ["parquet", "told", "renamed", "arrow", "hf", "hf_shuffled", "dict", "by_id"])
def test_tokens_are_those_of_the_column_s_id(files, came, kind):
    folder, tokens, names = files
    by_name = dict(zip(names.tolist(), tokens.tolist(), strict=True))
    held = datasets.Dataset.from_dict({"tokens": tokens.tolist(), "name": names.tolist()})
    source = {
        "parquet": lambda: str(folder / "table-*.parquet"),
        "told": lambda: ParquetSource(folder / "table-*.parquet", id_column="name"),
        "renamed": lambda: ParquetSource(folder / "renamed.parquet", id_column="key"),
        "arrow": lambda: folder / "table.arrow",
        "hf": lambda: held,
        "hf_shuffled": lambda: held.shuffle(seed=1),
        "dict": lambda: by_name,
        "by_id": lambda: IndexableSource([by_name[i] for i in range(ROWS)], by_id=True),
    }[kind]
    assert came(source()) == Counter((name, tuple(row)) for name, row in by_name.items())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "megatron.idx", r"megatron\.bin holds no ids, only rows.*dict from id to tokens"),
        (lambda folder: folder / "flat.bin", r"flat\.bin holds no ids, only rows"),
        (lambda folder: [[1]] * ROWS, r"the list takes row numbers.*IndexableSource\(\.\.\., by_id=True\)"),
        (
            lambda folder: folder / "nameless.parquet",
            r"nameless\.parquet has no such column.*ParquetSource",
        ),
        (lambda folder: datasets.Dataset.from_dict({"tokens": [[1]]}), r"has no such column.*ArrowSource"),
    ],
)
def test_rows_do_not_stand_for_ids(files, came, make, message):
    message = "ids come from the column 'name' of its input.*" + message + ".*without id_column"
    with pytest.raises(TokenSourceError, match=message):
        came(make(files[0]))
    with pytest.raises(TokenSourceError, match=message):  # nor in a loss mask
        came(str(files[0] / "table-*.parquet"), loss_mask=make(files[0]))


def test_ids_are_distinct_integers(files, came):
    with pytest.raises(TokenSourceError, match="column 'name' holds string, but ids are integers"):
        came(files[0] / "words.parquet")
    with pytest.raises(TokenSourceError, match="rows 0 and 1 both have the id 5; ids must be distinct"):
        came(files[0] / "twice.parquet")


def test_ids_that_are_row_numbers_need_no_column(files, came):
    folder, tokens, _ = files
    expected = Counter((row, tuple(tokens[row].tolist())) for row in range(ROWS))
    for source in (
        str(folder / "table-*.parquet"), folder / "megatron.idx", tokens.tolist(),
        ArrowSource(folder / "table.arrow"),
    ):  # fmt: skip
        assert came(source, "numbered") == expected


@pytest.mark.parametrize("name", ["table-*.parquet", "table.arrow"])
def test_the_column_crosses_to_workers(files, no_launcher, load, name):
    folder, tokens, names = files
    by_name = dict(zip(names.tolist(), tokens.tolist(), strict=True))
    dataset = PackedDataset(f"embedded:{folder / 'root'}", "named", str(folder / name), batch_size=4)
    loader = load(dataset, 2, persistent_workers=True)
    for _ in dataset.epochs(2):
        seen = {}
        for batch in loader:
            rows = batch["input_ids"][batch["attention_mask"].bool()].view(-1, LENGTH).tolist()
            seen |= dict(zip(batch["ids"].tolist(), rows, strict=True))
        assert seen == by_name
