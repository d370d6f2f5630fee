"""Which files an input names: a folder is read by what is in it, and nothing is read as what it is not."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyarrow import ipc
from tests.flat_words import tokenize
from tests.shelf.tokenize.made import sequences

from packhorse.tokenize import DocumentOptions, Skipped, iterate_documents
from packhorse.tokenize.commands.tokenize import command
from packhorse.tokenize.input import json_rows as json_module

TEXTS = [f"document {number}, é" for number in range(100)]
ROWS = [{"text": text, "n": 1} for text in TEXTS]
LINES = "\n".join(json.dumps(row) for row in ROWS).encode()


def documents(*inputs: Path, **options: object) -> list[str]:
    return list(iterate_documents(inputs, DocumentOptions(**options)))  # type: ignore[arg-type]


def write(path: Path) -> Path:
    """Writes the rows as the file's name says."""
    name = path.name.removesuffix(".gz").removesuffix(".zst")
    path.parent.mkdir(parents=True, exist_ok=True)
    if name.endswith(".parquet"):
        pq.write_table(pa.table({"text": TEXTS}), path)
        return path
    if name.endswith((".arrow", ".feather")):
        table = pa.table({"n": range(100), "text": TEXTS})
        make = ipc.new_stream if name.endswith(".arrow") else ipc.new_file
        with make(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=30)
        return path
    data = {
        "array.json": json.dumps(ROWS),
        "indented.json": json.dumps(ROWS, indent=2),
        "lines.json": LINES.decode(),
        "values.json": "\n".join(json.dumps(row, indent=2) for row in ROWS),
    }.get(name, LINES.decode()).encode()
    if path.suffix == ".gz":
        data = gzip.compress(data[:1000]) + gzip.compress(data[1000:])  # in members, as crawls are
    elif path.suffix == ".zst":
        data = pa.compress(data, codec="zstd", asbytes=True)
    path.write_bytes(data)
    return path


NAMES = [
    "a.jsonl", "a.ndjson", "a.jsonl.gz", "a.JSONL.zst", "array.json", "indented.json", "lines.json", "values.json",
    "array.json.gz", "a.parquet", "a.arrow", "a.feather",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_gives_its_rows_alone_and_in_a_folder(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "data" / name)
    assert documents(path) == TEXTS
    assert documents(path.parent) == TEXTS


def test_a_hundred_documents_in_a_folder_of_json_lines_are_a_hundred_sequences(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / "data" / f"{number}").mkdir(parents=True)
        (tmp_path / "data" / f"{number}" / "a.jsonl").write_bytes(
            b"\n".join(LINES.split(b"\n")[number * 50 : number * 50 + 50])
        )
    flags = ["--input", str(tmp_path / "data"), "--output", str(tmp_path / "x"), "--train-tokenizer"]
    result = CliRunner().invoke(command, [*flags, "--vocab-size", "300"], catch_exceptions=False)
    assert len(sequences(tmp_path / "x")) == 100
    assert "2 JSON lines files" in result.output


def test_a_folder_of_several_kinds_of_rows_is_read_by_each_files_kind(tmp_path: Path) -> None:
    for name in ("b.parquet", "a.jsonl.gz", "c/d.json"):
        write(tmp_path / "data" / name)
    for name in ("README.md", "LICENSE", ".gitattributes", ".hidden.jsonl", "dataset_infos.json"):
        (tmp_path / "data" / name).write_text("{}")
    assert documents(tmp_path / "data") == 3 * TEXTS
    summary = tokenize(tmp_path / "data", tmp_path / "x", vocab_size=300, progress=False)
    assert summary.files_read == {"JSON lines": 1, "Parquet": 1, "JSON": 1}
    assert sorted(Path(name).name for name in summary.left_out) == ["LICENSE", "README.md", "dataset_infos.json"]


def test_a_saved_dataset_is_read_by_its_state(tmp_path: Path) -> None:
    write(tmp_path / "train" / "data-1.arrow")
    write(tmp_path / "train" / "cache-5f.arrow")
    (tmp_path / "train" / "dataset_info.json").write_text("{}")
    (tmp_path / "train" / "state.json").write_text('{"_data_files": [{"filename": "data-1.arrow"}]}')
    assert documents(tmp_path / "train") == TEXTS
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(ValueError, match="give the folder of one"):
        documents(tmp_path)


def test_a_folder_of_rows_and_text_is_refused_until_one_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl")
    (tmp_path / "b.txt").write_text("text")
    with pytest.raises(ValueError, match=r"holds rows \(a.jsonl\) and other files \(b.txt\).*glob='\*.jsonl\*'"):
        documents(tmp_path)
    assert documents(tmp_path, glob="*.jsonl*") == TEXTS
    assert documents(tmp_path, glob="*.txt") == ["text"]


def test_settings_in_a_folder_of_source_code_are_text_where_this_is_said(tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"name": "x"}')
    (tmp_path / "main.js").write_text("run()")
    with pytest.raises(ValueError, match="documents='file' to read all as text"):
        documents(tmp_path)
    assert documents(tmp_path, split="file") == ["run()", '{"name": "x"}']
    assert documents(tmp_path / "package.json", split="file") == ['{"name": "x"}']


@pytest.mark.parametrize("name", ["x.csv", "x.tar.gz", "x.zip", "x.jsonl.bz2", "x.jsonl.xz", "x.parquet.gz"])
def test_what_is_not_read_is_refused_with_the_way_out(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ValueError, match=rf"{name} is .*(convert|unpack) it"):
        documents(tmp_path / name)


def test_csv_is_text_where_this_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\nc,d\n")
    assert documents(tmp_path / "x.csv", split="line") == ["a,b", "c,d"]


def test_text_is_decompressed_too(tmp_path: Path) -> None:
    (tmp_path / "x.txt.gz").write_bytes(gzip.compress(b"one\ntwo"))
    (tmp_path / "y.txt.zst").write_bytes(pa.compress(b"three", codec="zstd", asbytes=True))
    assert documents(tmp_path, split="line") == ["one", "two", "three"]
    assert documents(tmp_path / "x.txt.gz") == ["one\ntwo"]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("damage", ["cut", "other"])
def test_a_damaged_compressed_file_is_refused_by_its_name(tmp_path: Path, suffix: str, damage: str) -> None:
    path = write(tmp_path / f"a.jsonl{suffix}")
    path.write_bytes(path.read_bytes()[:-5] if damage == "cut" else b"no such thing")
    with pytest.raises(ValueError, match=rf"a.jsonl{suffix} cannot be read as (gzip|zstd)"):
        documents(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"text": "a"}, {"text": ', "entry 1 is not JSON"),
        ('[{"text": "a"}', "ends within its array, after entry 0"),
        ('[{"text": "a"}] 5', "something follows the array"),
        ('[{"text": "a"}] ]', "something follows the array"),
        ('[{"text": "a"}, 5]', "entry 1 has no key 'text'; it has a number"),
        ('{"data": [{"text": "a"}]}', "entry 0 has no key 'text'; it has data"),
        ('["a"]', "entry 0 has no key 'text'; it has text"),
        ("nonsense", "entry 0 is not JSON"),
        ("[" * 100_000, "nested too deeply|not JSON"),
        (b'[{"text": "\xff"}]', "is not UTF-8"),
    ],
)
def test_bad_json_is_refused_with_its_entry(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ValueError, match=message) as caught:
        documents(path)
    assert "bad.json" in str(caught.value)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_an_array_is_the_same_however_it_is_read(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_module, "_READ_CHARACTERS", size)
    assert documents(write(tmp_path / "array.json")) == TEXTS
    assert documents(write(tmp_path / "values.json")) == TEXTS


def test_an_empty_folder_and_a_glob_without_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no file"):
        documents(tmp_path)
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(FileNotFoundError, match=r"no file that matches glob='\*.py'"):
        documents(tmp_path, glob="*.py")


def test_what_is_skipped_is_named_where_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\0")
    with pytest.raises(ValueError, match=r"1 undecodable were skipped \(.*a\.bin\)"):
        tokenize(tmp_path / "a.bin", tmp_path / "x", vocab_size=300, progress=False)


def test_lines_of_compressed_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "a"}\n\xff\n'))
    skipped = Skipped()
    assert list(iterate_documents([path], skipped=skipped)) == ["a"]
    assert skipped.undecodable_named == [f"{path}, line 2"]
