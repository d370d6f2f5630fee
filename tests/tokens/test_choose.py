"""Which source a path or an object gets, and what is asked for where that cannot be told."""

import shutil
import subprocess
import sys
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packhorse.client.sources import (
    ArrowSource,
    FlatSource,
    IndexableSource,
    MdsSource,
    MegatronSource,
    ParquetSource,
    TokenSourceError,
    as_token_source,
)

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize(
    ("name", "kind"),
    [("megatron", MegatronSource), ("megatron.bin", MegatronSource), ("megatron.idx", MegatronSource),
     ("flat.bin", FlatSource), ("flat.bin.boundaries", FlatSource), ("arrow.arrow", ArrowSource),
     ("arrow_files-*.arrow", ArrowSource), ("hf_saved", ArrowSource), ("parquet.parquet", ParquetSource),
     ("part-?.parquet", ParquetSource)],
)  # fmt: skip
def test_paths(folder, name, kind):
    for path in (folder / name, str(folder / name)):
        source = as_token_source(path)
        assert type(source) is kind
        assert len(source) == 5


@pytest.mark.parametrize(
    ("name", "kind"),
    [("arrow.arrow", ArrowSource), ("parquet.parquet", ParquetSource), ("megatron.idx", MegatronSource)],
)
def test_file_urls_in_a_list_are_paths(folder, name, kind):
    source = as_token_source([(folder / name).as_uri()])
    assert type(source) is kind
    assert len(source) == 5


def test_folders(folder, tmp_path):
    assert type(as_token_source(DATA / "mds")) is type(as_token_source(DATA / "mds" / "index.json")) is MdsSource
    (tmp_path / "deep").mkdir()
    with pytest.raises(TokenSourceError, match=r"holds no state\.json, index\.json, Parquet or Arrow files"):
        as_token_source(tmp_path)
    shutil.copy(folder / "parquet.parquet", tmp_path / "deep")
    assert type(as_token_source(tmp_path)) is ParquetSource
    shutil.copy(folder / "arrow.arrow", tmp_path)
    with pytest.raises(TokenSourceError, match="holds both Parquet and Arrow files"):
        as_token_source(tmp_path)
    shutil.rmtree(tmp_path / "deep")
    assert type(as_token_source(tmp_path)) is ArrowSource


def test_objects(sources, folder):
    assert as_token_source(sources["own"]) is sources["own"]
    assert type(as_token_source([[1, 2]])) is IndexableSource
    assert as_token_source([{"a": [1, 2]}], column="a").read(0).tolist() == [1, 2]
    assert type(as_token_source(datasets.load_from_disk(folder / "hf_saved"))) is ArrowSource
    with pytest.raises(TokenSourceError, match=r"list is indexed by ids; leave id_column='id' out"):
        as_token_source([[1, 2]], id_column="id")


def test_several_datasets_are_refused_by_name(tmp_path):
    both = datasets.DatasetDict({name: datasets.Dataset.from_dict({"tokens": [[1]]}) for name in ("train", "val")})
    with pytest.raises(TokenSourceError, match="'train', 'val'"):
        as_token_source(both)
    both.save_to_disk(tmp_path / "both")
    with pytest.raises(TokenSourceError, match="pass the folder of one: train, val"):
        as_token_source(tmp_path / "both")
    assert as_token_source(tmp_path / "both" / "val").read(0).tolist() == [1]


def test_what_cannot_be_told(folder, sources, tmp_path):
    with pytest.raises(TokenSourceError, match=r"nothing\.idx.*nothing\.bin\.boundaries"):
        as_token_source(tmp_path / "nothing.bin")
    for suffix in (".bin", ".idx", ".bin.boundaries"):
        (tmp_path / f"both{suffix}").touch()
    with pytest.raises(TokenSourceError, match=r"both\.idx and both\.bin\.boundaries"):
        as_token_source(tmp_path / "both.bin")
    for several in ([folder / "arrow.arrow", folder / "parquet.parquet"], folder / "*.bin"):
        with pytest.raises(TokenSourceError, match=r"must all be \.parquet or all be \.arrow"):
            as_token_source(several)
    for given in (folder / "flat.bin", sources["own"]):
        with pytest.raises(TokenSourceError, match=r"column is 'a', but \w+Source has no columns"):
            as_token_source(given, column="a")
    for missing in ("nothing.parquet", "nothing*.arrow"):
        with pytest.raises(FileNotFoundError, match="nothing"):
            as_token_source(tmp_path / missing)


def test_without_pyarrow_the_rest_works_and_the_message_names_the_extra(folder):
    """In a process of its own, in which pyarrow cannot be imported."""
    code = f"""
import sys
sys.modules["pyarrow"] = None
from packhorse.client import as_token_source
for name in ("megatron", "flat.bin", {str(DATA / "mds")!r}):
    assert as_token_source({str(folder)!r} + "/" + name if name[0] != "/" else name).read(1).tolist() == [1000]
for name in ("arrow.arrow", "parquet.parquet", "hf_saved"):
    try:
        as_token_source({str(folder)!r} + "/" + name)
    except ImportError as error:
        assert "packhorse[client,arrow]" in str(error), error
    else:
        raise SystemExit("no error")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_pandas_is_not_imported(tmp_path, kind):
    """Pyarrow's own way to NumPy imports it, which takes longer than opening the source."""
    path = str(tmp_path / f"tokens.{kind}")
    table = pa.table({"id": [70, 30, 50], "input_ids": [[1, 2, 3], [4], None]})
    if kind == "arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    else:
        pq.write_table(table, path)
    script = f"""
import sys
from packhorse.client.sources import TokenSourceError, as_token_source
source = as_token_source({path!r}, id_column="id")
assert source.read(70).tolist() == [1, 2, 3]
try:
    source.read(50)
except TokenSourceError as error:
    assert "is null there" in str(error)
else:
    raise AssertionError("a null was read")
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


@pytest.mark.parametrize("name", ["gone.idx", "gone.bin.boundaries"])
def test_an_index_that_is_missing_is_named(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=rf"{name} does not exist"):
        as_token_source(tmp_path / name)


def test_an_empty_mask_of_a_component_is_not_taken_for_a_missing_one(tmp_path):
    pq.write_table(pa.table({"mask": pa.array([], pa.list_(pa.uint8()))}), tmp_path / "empty.parquet")
    masks = as_token_source({"web": tmp_path / "empty.parquet"}, is_loss_mask=True)
    assert masks.as_mask_of(as_token_source({"web": [[7, 8]]})).sources["web"] is masks.sources["web"]
