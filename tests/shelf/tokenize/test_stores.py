"""`tokenize` of what lies in an object store: the files that the same inputs on a disk give."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tests.flat_words import tokenize
from tests.stores import Bucket

from packhorse.tokenize.commands.tokenize import command

TEXTS = [f"line {number} of many, with some words" for number in range(200)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "inputs"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.jsonl").write_text("".join(f'{{"text": "{text}"}}\n' for text in TEXTS))
    (folder / "b.txt").write_text("\n".join(TEXTS[:50]))
    (folder / "deep" / "c.py").write_text("print(1)\n")
    (folder / "deep" / ".hidden").write_text("no\n")
    pq.write_table(pa.table({"text": TEXTS}), folder / "d.parquet", row_group_size=60)
    return folder


def tokens(prefix: Path) -> tuple[bytes, bytes]:
    return prefix.with_suffix(".bin").read_bytes(), prefix.with_suffix(".idx").read_bytes()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.jsonl", {}),
        ("b.txt", {"documents": "line"}),
        ("d.parquet", {}),
        ("*.jsonl", {}),
        ("", {"glob": "*.py"}),
        ("", {"glob": "deep/*"}),
    ],
)
def test_a_store_gives_the_files_that_a_disk_gives(
    folder: Path, bucket: Bucket, tmp_path: Path, name: str, options: dict[str, str]
) -> None:
    url = bucket.put_folder("text", folder)
    there, here = tmp_path / "there", tmp_path / "here"
    source = f"{url}/{name}".rstrip("/")
    tokenize(source, there, vocab_size=300, progress=False, **options)  # type: ignore[arg-type]
    tokenize(str(folder / name), here, vocab_size=300, progress=False, **options)  # type: ignore[arg-type]
    assert tokens(there) == tokens(here)


def test_an_object_that_changed_is_not_gone_on_with(
    folder: Path, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = bucket.put("a.jsonl", folder / "a.jsonl")
    with monkeypatch.context() as patched:
        patched.setattr("packhorse.tokenize.text._refuse_empty_output", _stop)
        with pytest.raises(KeyboardInterrupt):
            tokenize(url, tmp_path / "out", vocab_size=300, progress=False)
    bucket.put("a.jsonl", (folder / "a.jsonl").read_bytes().replace(b"many", b"more"))
    with pytest.raises(ValueError, match=r"interrupted call: .*a\.jsonl changed since\."):
        tokenize(url, tmp_path / "out", vocab_size=300, resume=True, progress=False)


def test_a_line_is_named_by_its_url(bucket: Bucket, tmp_path: Path) -> None:
    url = bucket.put("bad.jsonl", b'{"text": "x"}\n{"text"\n')
    with pytest.raises(ValueError, match=rf"{url}, line 2 is not JSON"):
        tokenize(url, tmp_path / "out", vocab_size=300, progress=False)


def test_the_command_takes_urls(folder: Path, bucket: Bucket, tmp_path: Path) -> None:
    url = bucket.put("a.jsonl", folder / "a.jsonl")
    arguments = ["--input", url, "--train-tokenizer", "--vocab-size", "300", "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    missing = CliRunner().invoke(command, [*arguments[:1], f"{bucket.url}/none/*.jsonl", *arguments[2:], "--overwrite"])
    assert "no object matches" in str(missing.exception)


def _stop(*_: object) -> None:
    raise KeyboardInterrupt
