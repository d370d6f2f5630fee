"""Cutting inputs into documents: every kind of input, what is skipped, and what is refused."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packhorse.formats import extras
from packhorse.tokenize import DocumentOptions, Skipped, iterate_documents
from packhorse.tokenize.input.files import expand_inputs


def documents(*inputs: Path, **options: object) -> tuple[list[str], Skipped]:
    skipped = Skipped()
    return list(iterate_documents(inputs, DocumentOptions(**options), skipped)), skipped  # type: ignore[arg-type]


def test_a_text_file_is_cut_three_ways(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("eins\r\nzwei \n\n \ndrei\nvier é\n".encode())
    assert documents(path)[0] == ["eins\r\nzwei \n\n \ndrei\nvier é\n"]
    lines, skipped = documents(path, split="line")
    assert lines == ["eins", "zwei ", "drei", "vier é"]
    assert skipped.empty == 2
    paragraphs, skipped = documents(path, split="paragraph")
    assert paragraphs == ["eins\r\nzwei ", "drei\nvier é"]
    assert skipped.empty == 0


@given(paragraphs=st.lists(st.lists(st.text("ab é", min_size=1).filter(str.strip), min_size=1), min_size=1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_paragraphs_and_lines_round_trip(tmp_path: Path, paragraphs: list[list[str]]) -> None:
    path = tmp_path / "a.txt"
    texts = ["\n".join(lines) for lines in paragraphs]
    path.write_text("\n\n".join(texts), encoding="utf-8")
    assert documents(path, split="paragraph")[0] == texts
    assert documents(path, split="line")[0] == [line for lines in paragraphs for line in lines]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\ntwo")
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "three"}')
    assert documents(tmp_path / "a.txt", split="line")[0] == ["one", "two"]
    assert documents(tmp_path / "a.jsonl")[0] == ["three"]


def test_a_folder_gives_one_document_for_each_visible_file(tmp_path: Path) -> None:
    for name, content in {
        "b.py": b"b = 1\n\nc = 2\n",
        "a/z.py": b"z = 1",
        "a/notes.md": b"# notes",
        "a/.hidden.py": b"hidden",
        ".git/config.py": b"hidden",
        "empty.py": b" \n",
        "image.png": b"\x89PNG\0",
        "latin.py": "é".encode("latin-1"),
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    found, skipped = documents(tmp_path)
    assert found == ["# notes", "z = 1", "b = 1\n\nc = 2\n"]
    assert (skipped.empty, skipped.undecodable) == (1, 2)
    assert [Path(name).name for name in skipped.undecodable_named] == ["image.png", "latin.py"]
    assert documents(tmp_path, glob="*.py")[0] == ["z = 1", "b = 1\n\nc = 2\n"]
    assert documents(tmp_path, glob="a/*.py")[0] == ["z = 1"]
    with pytest.raises(ValueError, match=r"image\.png holds null bytes"):
        documents(tmp_path, undecodable="error")
    with pytest.raises(ValueError, match=r"latin\.py is not UTF-8.* at byte 0"):
        documents(tmp_path, glob="*.py", undecodable="error")


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"text": "one\ntwo", "n": 1}, {"text": ""}, {"text": None}, {"text": "é"}, {"text": "\ud800"}]
    path.write_text("\n\n".join(json.dumps(row) for row in rows))
    found, skipped = documents(path)
    assert found == ["one\ntwo", "é"]
    assert (skipped.empty, skipped.undecodable) == (2, 1)
    assert skipped.undecodable_named[0].endswith("a.jsonl, line 9")
    path.write_text('{"body": "b"}')
    assert documents(path, text_column="body")[0] == ["b"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a"}\n{"text": ', "line 2 is not JSON"),
        ('{"body": "a", "n": 1}', "line 1 has no key 'text'; it has body, n"),
        ("{}", "it has no keys"),
        ('{"a', "line 1 is not JSON: Unterminated string starting at column 2"),
        ("[1]", "it has a list"),
        ('{"text": 3}', "'text' holds a number, not text"),
    ],
)
def test_bad_json_lines_are_refused_with_their_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        documents(path)
    assert "bad.jsonl, line" in str(caught.value)


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())], ids=str
)
def test_parquet_text_columns(tmp_path: Path, kind: pa.DataType) -> None:
    texts = [f"document {i}" for i in range(2500)]
    column = pa.array([*texts, "", None], pa.string()).cast(kind)
    pq.write_table(pa.table({"n": range(2502), "text": column}), tmp_path / "a.parquet", row_group_size=700)
    found, skipped = documents(tmp_path / "a.parquet")
    assert found == texts
    assert skipped.empty == 2


def test_bad_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": [1], "body": ["b"]}), path)
    with pytest.raises(ValueError, match="no column 'text'; it has n, body"):
        documents(path)
    with pytest.raises(ValueError, match="column 'n' holds int64, not text"):
        documents(path, text_column="n")
    path.write_bytes(b"not parquet at all")
    with pytest.raises(ValueError, match=r"a\.parquet is not a Parquet file"):
        documents(path)


def test_inputs_keep_their_order_and_patterns_are_sorted(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c[1].txt"):
        (tmp_path / name).write_text(name)
    assert expand_inputs([tmp_path / "c[1].txt", str(tmp_path / "[ab].txt")]) == [
        str(tmp_path / name) for name in ("c[1].txt", "a.txt", "b.txt")
    ]
    with pytest.raises(FileNotFoundError, match=r"none\.txt"):
        expand_inputs([tmp_path / "none.txt"])
    with pytest.raises(FileNotFoundError, match=r"\*\.md"):
        expand_inputs([tmp_path / "*.md"])
    with pytest.raises(ValueError, match="no input"):
        expand_inputs([])


@pytest.mark.parametrize(("name", "value"), [("split", "word"), ("undecodable", "ignore")])
def test_unknown_options_are_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{value}.*choose one of"):
        DocumentOptions(**{name: value})  # type: ignore[arg-type]


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(module: str) -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    (tmp_path / "a.parquet").write_bytes(b"")
    monkeypatch.setattr(extras.importlib, "import_module", missing)
    with pytest.raises(ImportError, match=r"pyarrow .*packhorse\[prepare\]"):
        documents(tmp_path / "a.parquet")
