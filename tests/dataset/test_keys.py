"""The table of keys, against a dict."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.dataset import DuplicateKeyError, KeyRows, Keys, keys, write_keys

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)


def rows_of(names, ids=None, *, at_once=3):
    for first in range(0, len(names), at_once):
        some = [name.encode() for name in names[first : first + at_once]]
        sizes = np.array([len(each) for each in some], dtype=np.int64)
        kept = None if ids is None else np.array(ids[first : first + at_once], dtype=np.int64)
        yield KeyRows(np.frombuffer(b"".join(some), np.uint8), sizes, kept)


def table_of(folder, names, ids=None):
    record = write_keys(Path(folder), rows_of(names, ids), column="url", num_keys=len(names))
    return Keys.mapped(Path(folder), record), record


@given(st.lists(texts, min_size=1, unique=True), st.lists(texts), st.data())
def test_it_answers_as_a_dict_does(names, others, data):
    ids = None
    if data.draw(st.booleans()):
        ids = sorted(data.draw(st.sets(st.integers(0, 99), min_size=len(names), max_size=len(names))))
    oracle = dict(zip(names, range(len(names)) if ids is None else ids, strict=True))
    with TemporaryDirectory() as folder:
        table, record = table_of(folder, names, ids)
        assert (len(table), record.num_keys, record.has_ids) == (len(names), len(names), ids is not None)
        asked = [*names, *others]
        assert table.ids_of(asked).tolist() == [oracle.get(name, -1) for name in asked]
        key_of = {number: name for name, number in oracle.items()}
        numbers = [*range(-2, 102)]
        assert table.of(np.array(numbers)) == [key_of.get(number, "") for number in numbers]
        kept = [row for some in table.rows() for row in np.split(some.data, np.cumsum(some.sizes)[:-1])]
        assert [row.tobytes().decode() for row in kept] == names


@pytest.mark.parametrize("bits", [0, 1, 3])
def test_keys_with_equal_hashes_are_told_apart(tmp_path, monkeypatch, bits):
    """With hashes of few bits every key collides, and with few keys a bucket there are several of these."""
    monkeypatch.setattr(keys, "_hash", lambda key: int(key[0]) % 4 << keys.HASH_BITS - 3)
    monkeypatch.setattr(
        keys, "_hashes", lambda data, ends: np.array([keys._hash(each) for each in np.split(data, ends[:-1])], np.int64)
    )
    monkeypatch.setattr(keys, "_BUCKET_KEYS", 100 >> bits)
    names = [f"{number}-{number * number}" for number in range(60)]
    table, _ = table_of(tmp_path, names)
    assert table.ids_of([*names, "7-50"]).tolist() == [*range(60), -1]
    assert (np.diff(table.order[:, 0]) >= 0).all()
    assert not list(tmp_path.glob("*.npy.*")), "what was sorted is gone"
    for folder in ("first", "last"):
        (tmp_path / folder).mkdir()
    with pytest.raises(DuplicateKeyError) as caught:
        table_of(tmp_path / "first", [*names, "0-0"])
    assert (caught.value.key, caught.value.ids) == ("0-0", (0, 60))
    with pytest.raises(DuplicateKeyError) as caught:
        table_of(tmp_path / "last", [*names, "59-3481"], [*range(100, 161)])
    assert caught.value.ids == (159, 160)


def test_some_keys_go_into_another_table(tmp_path):
    whole, _ = table_of(tmp_path, [f"k{number}" for number in range(10)])
    (tmp_path / "part").mkdir()
    ids = np.array([2, 3, 9])
    part = Keys.mapped(tmp_path / "part", write_keys(tmp_path / "part", whole.rows(ids), column="k", num_keys=3))
    assert part.ids_of(["k2", "k3", "k4", "k9"]).tolist() == [2, 3, -1, 9]
    assert part.of(np.array([3, 4, 9, 10])) == ["k3", "", "k9", ""]


def test_a_table_begins_with_another(tmp_path):
    for name in "abc":
        (tmp_path / name).mkdir()
    short, _ = table_of(tmp_path / "a", ["x", "yy"])
    assert table_of(tmp_path / "b", ["x", "yy", "z"])[0].begins_with(short)
    assert not table_of(tmp_path / "c", ["xy", "y", "z"])[0].begins_with(short)
    assert not short.begins_with(Keys.mapped(tmp_path / "b", write_record(tmp_path / "b")))


def write_record(folder):
    ends = np.load(folder / "key_ends.npy")
    return keys.KeyRecord(column="url", num_keys=len(ends), num_bytes=int(ends[-1]))
