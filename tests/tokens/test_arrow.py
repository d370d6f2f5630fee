"""Arrow files and Hugging Face datasets: list layouts, ids, selections, nulls, and what cannot be read."""

import json
import os
import pickle
import struct

import datasets
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packhorse.client.sources import ArrowSource, TokenSourceError, as_token_source

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


def everything(source):
    return [source.read(i).tolist() for i in range(len(source))]


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("make", [pa.list_, pa.large_list])
def test_every_integer_type_in_every_list_type(tmp_path, write_arrow, token_table, make, name):
    rows = [[1, 2, 3], [], [127]]
    write_arrow(tmp_path / "x.arrow", token_table(rows, make(pa.type_for_alias(name))), rows=2)
    source = ArrowSource(tmp_path / "x.arrow")
    assert source.read(0).dtype == name
    assert everything(source) == rows
    assert not source.read(0).flags.owndata


def test_fixed_size_lists(tmp_path, write_arrow, token_table, gather):
    rows = [[10 * i, 10 * i + 1] for i in range(7)]
    write_arrow(tmp_path / "x.arrow", token_table(rows, pa.list_(pa.uint16(), 2)), rows=3)
    source = ArrowSource(tmp_path / "x.arrow")
    assert everything(source) == rows
    assert gather(source, [6, 2], [1, 2], first_tokens=np.array([1, 0])) == [[61], [20, 21]]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=12),
    width=st.none() | st.integers(1, 3),
    stream=st.booleans(),
    batch=st.integers(1, 5),
    bounds=st.tuples(st.integers(0, 12), st.integers(0, 12)),
    data=st.data(),
)
def test_slices_and_batches_of_any_size(tmp_path, write_arrow, token_table, rows, width, stream, batch, bounds, data):
    """Arrow's own `to_pylist` is the oracle."""
    if width is not None:
        rows = [(row * 4 + [5] * 4)[:width] for row in rows]
    table = token_table(rows, pa.list_(pa.int32(), width) if width else None)[min(bounds) : max(bounds)]
    write_arrow(tmp_path / "x.arrow", table, stream=stream, rows=batch)
    expected = table.column(0).to_pylist()
    assert everything(ArrowSource(tmp_path / "x.arrow")) == expected
    dataset = datasets.Dataset(table)
    assert everything(ArrowSource(dataset)) == expected
    chosen = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=6)) if expected else []
    assert everything(ArrowSource(dataset.select(chosen))) == [expected[i] for i in chosen]


def test_values_that_are_a_slice():
    values = pa.array([9, 9, 1, 2, 3, 4])[2:]
    lists = pa.ListArray.from_arrays([0, 1, 4], values)
    assert everything(ArrowSource(datasets.Dataset(pa.table({"tokens": lists})))) == [[1], [2, 3, 4]]
    pairs = pa.FixedSizeListArray.from_arrays(values, 2)
    assert everything(ArrowSource(datasets.Dataset(pa.table({"tokens": pairs})))) == [[1, 2], [3, 4]]


def test_files_are_read_in_the_given_order(tmp_path, write_arrow, token_table):
    paths = [write_arrow(tmp_path / f"{name}.arrow", token_table([[i]])) for i, name in enumerate("cab")]
    assert everything(ArrowSource(paths)) == [[0], [1], [2]]
    assert everything(ArrowSource(tmp_path)) == everything(as_token_source(tmp_path)) == [[1], [2], [0]]
    with pytest.raises(TokenSourceError, match="the list of Arrow files is empty"):
        ArrowSource([])


def test_files_of_other_columns_are_refused(tmp_path, write_arrow, token_table):
    write_arrow(tmp_path / "a.arrow", token_table([[1]]))
    write_arrow(tmp_path / "b.arrow", token_table([[1]], pa.list_(pa.int64())))
    with pytest.raises(TokenSourceError, match=r"b\.arrow has other columns than .*a\.arrow"):
        ArrowSource(tmp_path)


def test_nulls_are_refused_where_they_are_asked_for(tmp_path, write_arrow, token_table, gather):
    rows = [[1], None, [3, None], [4], [], [None]]
    fixed = [[1], None, [None], [4]]
    write_arrow(tmp_path / "x.arrow", token_table(rows), rows=4)
    write_arrow(tmp_path / "y.arrow", token_table(fixed, pa.list_(pa.int32(), 1)))
    selected = datasets.Dataset(token_table(rows)).select([5, 2, 1, 0])
    for source, good, bad in (
        (ArrowSource(tmp_path / "x.arrow"), [0, 3, 4], [1, 2, 5]),
        (ArrowSource(tmp_path / "y.arrow"), [0, 3], [1, 2]),
        (ArrowSource(selected), [3], [0, 1, 2]),
    ):
        for i in good:
            assert None not in source.read(i).tolist()
        for i in bad:
            with pytest.raises(TokenSourceError, match=f"sequence {i}: column 'tokens' of .* is null"):
                gather(source, [good[0], i], [1, 1])


@pytest.mark.parametrize(
    ("kind", "shown"),
    [(pa.list_(pa.float32()), "list<.*float>"), (pa.list_(pa.string()), "list<.*string>"), (pa.int64(), "int64"),
     (pa.list_(pa.list_(pa.int32())), "list<.*list<.*int32>>"), (pa.list_(pa.bool_()), "list<.*bool>")],
)  # fmt: skip
def test_other_types_are_refused(tmp_path, write_arrow, kind, shown):
    write_arrow(tmp_path / "x.arrow", pa.table({"tokens": pa.array([], kind)}))
    with pytest.raises(TokenSourceError, match=f"column 'tokens' holds {shown}, but tokens are lists of integers"):
        ArrowSource(tmp_path / "x.arrow", column="tokens")
    with pytest.raises(TokenSourceError, match="no column 'other'; its columns are: 'tokens'"):
        ArrowSource(tmp_path / "x.arrow", column="other")


def test_the_column_is_chosen_or_asked_for(tmp_path, write_arrow, token_table):
    path = tmp_path / "x.arrow"
    more = pa.array([[9]], pa.list_(pa.int8()))
    text = pa.array(["a"])
    write_arrow(path, token_table([[1]], mask=more, text=text))
    assert everything(ArrowSource(path)) == [[1]]
    assert everything(ArrowSource(path, column="mask")) == [[9]]
    write_arrow(path, token_table([[1]], text=text).rename_columns(["whatever", "text"]))
    assert everything(ArrowSource(path)) == [[1]]
    for table, count in (
        (token_table([[1]], input_ids=more), 2),
        (token_table([[1]], mask=more).rename_columns(["a", "b"]), 2),
        (pa.table({"text": text}), 0),
    ):
        write_arrow(path, table)
        with pytest.raises(TokenSourceError, match=f"{count} of its columns could hold tokens; .*column=") as refused:
            ArrowSource(path)
        assert all(repr(name) in str(refused.value) for name in table.column_names)
    write_arrow(path, pa.Table.from_arrays([more, more], names=["tokens", "tokens"]))
    with pytest.raises(TokenSourceError, match="2 columns named 'tokens'"):
        ArrowSource(path, column="tokens")


def test_id_column(tmp_path, write_arrow, token_table, gather):
    ids = [2**40, -3, 7]
    path = write_arrow(tmp_path / "x.arrow", token_table([[0], [1], [2]], id=pa.array(ids)), rows=2)
    source = ArrowSource(path, id_column="id")
    assert gather(source, [7, 2**40, -3], [1, 1, 1]) == [[2], [0], [1]]
    with pytest.raises(TokenSourceError, match="no sequence with id 0; its 3 ids come from a column"):
        source.read(0)
    chosen = ArrowSource(
        datasets.Dataset(token_table([[0], [1], [2]], id=pa.array(ids))).select([2, 0]), id_column="id"
    )
    assert gather(chosen, [2**40, 7], [1, 1]) == [[0], [2]]
    with pytest.raises(TokenSourceError, match="id -3"):
        chosen.read(-3)


@pytest.mark.parametrize(
    ("ids", "message"),
    [(pa.array([5, 6, 5]), "rows 0 and 2 both have the id 5"), (pa.array([5, None, 6]), "row 1, column 'id' is null"),
     (pa.array([1, 2, 2**63], pa.uint64()), "9223372036854775808, which int64 cannot hold")],
)  # fmt: skip
def test_id_columns_that_are_none(tmp_path, write_arrow, token_table, ids, message):
    path = write_arrow(tmp_path / "x.arrow", token_table([[0], [1], [2]], id=ids))
    with pytest.raises(TokenSourceError, match=message):
        ArrowSource(path, id_column="id").read(5)


def test_id_column_of_another_type(tmp_path, write_arrow, token_table):
    path = write_arrow(tmp_path / "x.arrow", token_table([[0]], id=pa.array(["a"])))
    with pytest.raises(TokenSourceError, match="column 'id' holds string, but ids are integers"):
        ArrowSource(path, id_column="id")


@pytest.mark.parametrize("stream", [False, True])
def test_compressed_files_are_refused(tmp_path, write_arrow, token_table, stream):
    path = write_arrow(tmp_path / "x.arrow", token_table([[1] * 1000]), stream=stream, compression="zstd")
    with pytest.raises(TokenSourceError, match=r"x\.arrow is compressed.*without compression"):
        ArrowSource(path)


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_no_arrow_file(tmp_path, write_arrow, token_table, stream):
    path = write_arrow(tmp_path / "x.arrow", token_table([[1] * 1000, [2]]), stream=stream, rows=1)
    data = path.read_bytes()
    for broken in (b"", b"nothing of the kind", data[: len(data) // 2]):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=r"x\.arrow cannot be read as an Arrow IPC file"):
            ArrowSource(path)
    with pytest.raises(FileNotFoundError, match="nothing"):
        ArrowSource(tmp_path / "nothing.arrow")


def test_file_replaced_since_it_was_opened(tmp_path, write_arrow, token_table):
    path = write_arrow(tmp_path / "x.arrow", token_table([[1]]))
    data = pickle.dumps(ArrowSource(path))
    write_arrow(path, token_table([[1], [2]]))
    with pytest.raises(ValueError, match=r"x\.arrow has been replaced"):
        pickle.loads(data).read(0)


def test_maps_hold_no_descriptors(tmp_path, write_arrow, token_table):
    paths = [write_arrow(tmp_path / f"{i}.arrow", token_table([[i]])) for i in range(20)]
    before = len(os.listdir("/proc/self/fd"))
    source = ArrowSource(paths)
    assert len(os.listdir("/proc/self/fd")) < before + 5
    assert everything(source) == [[i] for i in range(20)]


def test_saved_dataset_is_read_in_its_state_s_order(folder, sequences, tmp_path):
    saved = tmp_path / "saved"
    datasets.load_from_disk(folder / "hf_saved").save_to_disk(saved, num_shards=2)
    state = json.loads((saved / "state.json").read_text())
    state["_data_files"].reverse()
    (saved / "state.json").write_text(json.dumps(state))
    assert everything(ArrowSource(saved)) == [sequences[i].tolist() for i in (3, 4, 0, 1, 2)]
    assert everything(ArrowSource(datasets.load_from_disk(saved))) == everything(ArrowSource(saved))
    (saved / "state.json").write_text(json.dumps({"_data_files": []}))
    with pytest.raises(TokenSourceError, match="names no Arrow file"):
        ArrowSource(saved)
    (saved / "state.json").write_text(json.dumps(state | {"_indices_data_files": [{"filename": "indices.arrow"}]}))
    with pytest.raises(TokenSourceError, match="old `datasets`"):
        ArrowSource(saved)


def test_held_dataset_as_it_is_transformed(folder, sequences):
    dataset = datasets.load_from_disk(folder / "hf_saved")
    shuffled = dataset.shuffle(seed=3)
    joined = datasets.concatenate_datasets([shuffled.select(range(1, 4)), dataset.select([4, 0])])
    for some in (dataset, shuffled, joined, joined.select([4, 4, 0]), dataset.with_format("torch")):
        expected = [list(row) for row in some.with_format(None)["input_ids"]]
        assert everything(ArrowSource(some)) == expected
        assert everything(pickle.loads(pickle.dumps(ArrowSource(some)))) == expected
    assert len(ArrowSource(dataset.select([]))) == 0


def test_offsets_that_leave_the_values(tmp_path, write_arrow, token_table, gather):
    path = write_arrow(tmp_path / "x.arrow", token_table([[1, 2], [3]]))
    data = path.read_bytes()
    offsets = struct.pack("<3i", 0, 2, 3)
    assert data.count(offsets) == 1
    path.write_bytes(data.replace(offsets, struct.pack("<3i", 0, 2, 500)))
    source = ArrowSource(path)
    assert gather(source, [0], [2]) == [[1, 2]]
    with pytest.raises(TokenSourceError, match="truncated or corrupt"):
        gather(source, [0, 1], [2, 498])
