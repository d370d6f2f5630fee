"""Which reader takes an input, what each says it cannot take, and lengths that are read without tokens."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tests.flat_words import prepare

from packhorse.cli.prepare import command
from packhorse.dataset import open_prepared
from packhorse.prepare import READERS, load_prepared

LENGTHS = [3, 1, 4, 1, 5, 9, 2, 6]
IDS = [80, 70, 60, 50, 40, 30, 20, 10]


def run(source: Any, output: Path, **options: Any) -> dict[int, list[int]]:
    """Length → ids."""
    prepare(source, **{"max_seq_len": 16, "output": output, "progress": False, **options})
    return {length: ids.tolist() for length, ids in load_prepared(output)[3].items()}


def expected(ids: list[int] | None = None) -> dict[int, list[int]]:
    pools: dict[int, list[int]] = {}
    for length, identity in zip(LENGTHS, ids or range(len(LENGTHS)), strict=True):
        pools.setdefault(length, []).append(identity)
    return {length: sorted(members) for length, members in pools.items()}


def test_numpy_files(tmp_path: Path) -> None:
    np.save(tmp_path / "plain.npy", np.array(LENGTHS, dtype=np.uint8))
    records = np.array(list(zip(LENGTHS, IDS, strict=True)), dtype=[("n", "<i2"), ("id", "<i8")])
    np.save(tmp_path / "records.npy", records)
    assert run(tmp_path / "plain.npy", tmp_path / "a") == expected()
    assert run(tmp_path / "records.npy", tmp_path / "b", length_column="n", id_column="id") == expected(IDS)
    for part in (0, 1):
        (tmp_path / "many").mkdir(exist_ok=True)
        np.save(tmp_path / "many" / f"{part}.npy", LENGTHS[4 * part :][:4])
    assert run(tmp_path / "many", tmp_path / "c") == expected()
    for array, options, said in (
        (np.ones(3), {}, "lengths holds float64, but integers are needed"),
        (np.ones((3, 2), int), {}, r"has shape \[3, 2\]"),
        (np.ones(3, int), {"length_column": "n"}, "has no columns"),
        (records, {}, "has fields 'n', 'id': length_column must name"),
        (records, {"length_column": "m"}, "has no field 'm'; its fields are: 'n', 'id'"),
        (np.array([object()]), {}, "cannot be read as a NumPy array: .*Python objects"),
    ):
        np.save(tmp_path / "bad.npy", array)
        with pytest.raises(ValueError, match=rf"bad\.npy.*{said}"):
            run(tmp_path / "bad.npy", tmp_path / "d", **options)


class Stream:
    """Speaks Arrow's C stream and nothing else, once, as a DuckDB result does."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        data, self._data = self._data, None
        return data.__arrow_c_stream__(requested_schema)


def test_what_python_holds(tmp_path: Path) -> None:
    table = pa.table({"n": pa.array(LENGTHS, pa.uint64()), "id": IDS, "text": ["x"] * 8})
    lists = pa.table({"tokens": [[7] * length for length in LENGTHS], "id": IDS})
    columns = {"length_column": "n", "id_column": "id"}
    records = np.array(list(zip(LENGTHS, IDS, strict=True)), dtype=[("n", "<i2"), ("id", "<i8")])
    cases: list[tuple[Any, dict[str, str]]] = [
        (table, columns),
        (Stream(table), columns),
        (table.to_reader(max_chunksize=3), columns),
        (table.to_batches()[0], columns),
        (table.to_pandas(), columns),
        (records, columns),
        (lists, {"id_column": "id"}),
        (Stream(lists), {"id_column": "id"}),
        (lists.to_reader(max_chunksize=1), {"id_column": "id"}),
        (datasets.Dataset(lists), {"id_column": "id"}),
        (np.array(LENGTHS), {}),
        (LENGTHS, {}),
        (pa.array(LENGTHS), {}),
        (pa.chunked_array([LENGTHS[:3], LENGTHS[3:]]), {}),
        (pd.Series(LENGTHS), {}),
        (lists["tokens"], {}),
    ]
    for number, (lengths, options) in enumerate(cases):
        output = tmp_path / str(number)
        assert run(None, output, lengths=lengths, **options) == expected(IDS if "id_column" in options else None)
        inputs = open_prepared(output).manifest.inputs
        assert inputs is not None
        assert (inputs.kind, inputs.rows, inputs.files) == (type(lengths).__name__, 8, ())


def test_what_python_holds_crosses_into_processes(tmp_path: Path) -> None:
    lengths = np.random.default_rng(0).integers(1, 17, 300_000)
    folders = [run(None, tmp_path / str(workers), lengths=lengths, workers=workers) for workers in (1, 2)]
    assert folders[0] == folders[1]
    assert sorted(identity for ids in folders[0].values() for identity in ids) == list(range(300_000))


@pytest.mark.parametrize(
    ("lengths", "kind", "said"),
    [
        ("x.parquet", TypeError, "lengths must be a NumPy array.*got str; files are given as input"),
        (7, TypeError, "got int"),
        ([1.5, 2.0], ValueError, "float64, but integers"),
        (["a"], ValueError, "integers are needed"),
        ([], ValueError, "holds no rows|float64"),
        (pa.table({"a": [1], "b": [2]}), ValueError, "length_column must name one.*'a' .int64., 'b'"),
        (pa.array(["a"]), ValueError, "holds string"),
        (datasets.DatasetDict({"a": datasets.Dataset.from_dict({"n": [1]})}), TypeError, "pass one of them: 'a'"),
        (pa.table({"input_ids": [[1], []]}), ValueError, "Table: row 1, column 'input_ids' is 0; a sequence has at"),
    ],
)  # fmt: skip
def test_what_is_no_lengths_is_refused(tmp_path: Path, lengths: Any, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        run(None, tmp_path / "out", lengths=lengths)
    with pytest.raises(ValueError, match=r"give either input.*or lengths"):
        run(tmp_path, tmp_path / "out", lengths=lengths)


def test_a_list_column_of_any_type_has_its_lengths_computed(tmp_path: Path) -> None:
    tokens = [list(range(length)) for length in LENGTHS]
    kinds = [pa.list_(pa.int32()), pa.large_list(pa.uint16()), pa.list_view(pa.int64()), pa.list_(pa.uint8())]
    for number, kind in enumerate(kinds):
        table = pa.table({"tokens": pa.array(tokens, kind), "other": LENGTHS})
        if not pa.types.is_list_view(kind):  # Parquet has no such lists
            pq.write_table(table, tmp_path / "x.parquet", row_group_size=3)
            assert run(tmp_path / "x.parquet", tmp_path / f"p{number}") == expected()
            assert run(tmp_path / "x.parquet", tmp_path / f"o{number}", length_column="other") == expected()
        for compression in (None, "lz4"):
            options = pa.ipc.IpcWriteOptions(compression=compression)
            with pa.ipc.new_file(tmp_path / "x.feather", table.schema, options=options) as writer:
                writer.write_table(table, max_chunksize=3)
            assert run(tmp_path / "x.feather", tmp_path / f"a{number}{compression}") == expected()


def test_a_file_is_told_by_its_first_bytes_where_its_name_says_nothing(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": LENGTHS}), tmp_path / "table")
    assert run(tmp_path / "table", tmp_path / "a", length_column="n") == expected()
    (tmp_path / "noise").write_bytes(b"\x00\x01")
    with pytest.raises(ValueError, match=r"noise is not recognised by its name.*packhorse prepare --help"):
        run(tmp_path / "noise", tmp_path / "b")


def test_text_and_histograms_name_the_command_that_takes_them(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(
        ValueError, match=r"packhorse tokenize --input .*corpus\.jsonl --output corpus.*then prepare corpus\.idx"
    ):
        run(tmp_path / "corpus.jsonl", tmp_path / "out")
    (tmp_path / "counts.json").write_text('{"5": 2, "3": 2}')
    with pytest.raises(ValueError, match=r"has no ids.*packhorse plan compare .*counts\.json"):
        run(tmp_path / "counts.json", tmp_path / "out")


def test_a_histogram_from_sql_is_planned(tmp_path: Path) -> None:
    plan = pytest.importorskip("packhorse.analysis.commands.plan")
    pq.write_table(pa.table({"length": [5, 3], "count": [2, 2]}), tmp_path / "counts.parquet")
    arguments = ["compare", str(tmp_path / "counts.parquet"), "--max-seq-len", "8", "--algorithm", "best-fit", "--json"]
    result = CliRunner().invoke(plan.command, arguments, catch_exceptions=False)
    assert '"bins": 2' in result.output
    pq.write_table(pa.table({"length": [5, 3], "count": [2.0, 2.0]}), tmp_path / "counts.parquet")
    with pytest.raises(ValueError, match=r"counts\.parquet is no histogram: .*'count' \(double\)"):
        CliRunner().invoke(plan.command, arguments, catch_exceptions=False)


def test_kinds_are_not_mixed_and_folders_say_what_they_hold(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": LENGTHS}), tmp_path / "a.parquet")
    np.save(tmp_path / "b.npy", LENGTHS)
    with pytest.raises(ValueError, match=r"a\.parquet is Parquet and .*b\.npy is NumPy"):
        run([tmp_path / "a.parquet", tmp_path / "b.npy"], tmp_path / "out")
    (tmp_path / "c.arrow").write_bytes(b"")
    with pytest.raises(ValueError, match=r"holds both \*\.parquet and \*\.arrow; give a quoted pattern"):
        run(tmp_path, tmp_path / "out")
    (tmp_path / "splits").mkdir()
    held = datasets.Dataset.from_dict({"input_ids": [[1]]})
    datasets.DatasetDict({"test": held, "train": held}).save_to_disk(tmp_path / "splits")
    with pytest.raises(ValueError, match="several datasets; give the folder of one as input: test, train"):
        run(tmp_path / "splits", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"empty holds no \*\.parquet, \*\.arrow or \*\.npy file"):
        run(tmp_path / "empty", tmp_path / "out")


@pytest.mark.parametrize("layout", ["packhorse", "seqpack"])
def test_a_prepared_dataset_is_no_input(tmp_path: Path, layout: str) -> None:
    prepare(lengths=LENGTHS, max_seq_len=16, output=tmp_path / "root" / "set", format=layout, progress=False)
    sources = [tmp_path / "root", next((tmp_path / "root").rglob("*.npy"))]
    if layout == "packhorse":  # a folder of seqpack's is an input
        sources.append(tmp_path / "root" / "set")
    for source in sources:
        with pytest.raises(ValueError, match=r"\.npy holds ids of the prepared dataset .*set, no lengths"):
            run(source, tmp_path / "out")


def test_messages_about_wide_tables_stay_short(tmp_path: Path) -> None:
    pq.write_table(pa.table({f"column {number}": [1] for number in range(500)}), tmp_path / "x.parquet")
    for options in ({}, {"length_column": "n"}, {"length_column": "column 1", "id_column": "id"}):
        with pytest.raises(ValueError, match=r"'column 5'.* and 494 more") as caught:
            run(tmp_path / "x.parquet", tmp_path / "out", **options)
        assert len(str(caught.value).replace(str(tmp_path), "")) < 400


def test_help_lists_every_reader() -> None:
    shown = " ".join(CliRunner().invoke(command, ["--help"]).output.split())
    for reader in READERS:
        assert f"{reader.kind} {reader.takes}" in shown


def test_bare_tokens_named_npy_are_told_how_to_say_where_documents_end(tmp_path: Path) -> None:
    np.arange(10, dtype="<u2").tofile(tmp_path / "raw.npy")
    with pytest.raises(ValueError, match=r"raw.npy has no header of NumPy.*rename it to X.bin .* X.bin.boundaries"):
        run(tmp_path / "raw.npy", tmp_path / "d")
    (tmp_path / "raw.npy").rename(tmp_path / "x.bin")
    np.array([4, 10], dtype="<i8").tofile(tmp_path / "x.bin.boundaries")
    assert run(tmp_path / "x.bin", tmp_path / "d") == {4: [0], 6: [1]}


def test_the_index_of_datatrove_is_linked_as_boundaries(tmp_path: Path) -> None:
    np.arange(10, dtype="<u2").tofile(tmp_path / "raw.ds")
    with pytest.raises(ValueError, match=r"raw.ds is not recognised"):
        run(tmp_path / "raw.ds", tmp_path / "d")
    np.array([4, 10], dtype="<u8").tofile(tmp_path / "raw.ds.index")
    with pytest.raises(ValueError, match=r"is of datatrove.*`ln -s raw.ds.index .*raw.ds.boundaries`"):
        run(tmp_path / "raw.ds", tmp_path / "d")
    (tmp_path / "raw.ds.boundaries").symlink_to("raw.ds.index")
    assert run(tmp_path / "raw.ds", tmp_path / "d") == {4: [0], 6: [1]}
