"""What signs a URL shows nowhere: not in errors about damaged objects, nor in manifests, summaries and sources."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec import register_implementation
from fsspec.implementations.local import LocalFileSystem
from tests.flat_words import prepare, tokenize

from packhorse.client.sources import as_token_source
from packhorse.formats.object_store import TokenStoreError, without_secrets

SECRET = "1f2e3d4c"
SIGNATURE = f"X-Amz-Credential=key&X-Amz-Signature={SECRET}"


class SignedFileSystem(LocalFileSystem):
    """Local files behind signed:// URLs, whatever signs them."""

    protocol = "signed"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("signed://").partition("?")[0]


register_implementation("signed", SignedFileSystem, clobber=True)


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the node's cache is."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def signed(path: Path) -> str:
    return f"signed://{path}?{SIGNATURE}"


def prepared(url: str, output: Path) -> object:
    return prepare(url, output=output, max_seq_len=64, progress=False)


def tokenized(url: str, output: Path) -> object:
    return tokenize(url, output, vocab_size=300, undecodable="error", progress=False)


def opened(url: str, output: Path) -> object:
    return as_token_source(url).read(0)


DAMAGED = {
    "x.parquet": b"PAR1 and no footer",
    "x.arrow": b"ARROW1\0\0 and no batches",
    "x.npy": b"\x93NUMPY and no header",
    "x.idx": b"MMIDIDX\0\0" + struct.pack("<Q", 9) + bytes(40),
    "x.jsonl": b"{no json",
    "index.json": b"[]",
    "counts.json": b"{}",
    "missing.parquet": None,
}


@pytest.mark.shelf
@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("read", [prepared, tokenized, opened])
def test_an_error_names_the_object_and_not_its_signature(
    read: Callable[[str, Path], object], name: str, tmp_path: Path
) -> None:
    content = DAMAGED[name]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    if read is tokenized and name.endswith((".idx", ".json", ".npy", ".arrow")):
        (tmp_path / name).write_bytes(b"\0")  # to it, what can be decoded is text
    with pytest.raises((ValueError, OSError)) as raised:
        read(signed(tmp_path / name), tmp_path / "out")
    assert name.partition(".")[0] in str(raised.value)
    assert SECRET not in str(raised.value)
    assert not isinstance(raised.value, TokenStoreError)


def test_a_row_that_is_refused_is_named_without_what_signs_its_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"length": [3, -1]}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=r"^signed:///\S*/x\.parquet: row 1") as raised:
        prepare(signed(tmp_path / "x.parquet"), length_column="length", output=tmp_path / "out", max_seq_len=64)
    assert SECRET not in str(raised.value)


@pytest.mark.shelf
def test_manifests_sources_and_summaries_show_no_signature(tmp_path: Path) -> None:
    table = pa.table({"tokens": [list(range(1, n)) for n in range(2, 9)], "text": ["some text"] * 7})
    pq.write_table(table, tmp_path / "x.parquet")
    (tmp_path / "y.jsonl").write_bytes(b'{"text": "a"}\n{"text": "\xff"}\n')
    url = signed(tmp_path / "x.parquet")
    prepare(url, output=tmp_path / "set", length_column="tokens", max_seq_len=64, progress=False)
    source = as_token_source(url)
    summary = tokenize(
        [url, signed(tmp_path / "y.jsonl")], tmp_path / "corpus", vocab_size=300, undecodable="skip", progress=False
    )
    assert source.read(2).tolist() == [1, 2, 3]
    assert np.diff([summary.documents, summary.skipped_undecodable]).tolist() == [-7]
    shown: list[Any] = [source, source.origin(2), summary, source.where]
    written = [path.read_bytes() for path in (tmp_path / "set").rglob("*") if path.is_file()]
    assert len(written) > 2
    assert not any(SECRET.encode() in content for content in written)
    assert not any(SECRET in str(one) for one in shown)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:pass@host/a%20b.idx?sig=1#part", "https://host/a%20b.idx"),
        ("s3://bucket/x.parquet?X-Amz-Signature=1f", "s3://bucket/x.parquet"),
        ("s3://key:secret@bucket/x", "s3://bucket/x"),
        ("abfs://container@account.dfs.core.windows.net/x", "abfs://container@account.dfs.core.windows.net/x"),
        ("s3://bucket/day=?/part-??.parquet", "s3://bucket/day=?/part-??.parquet"),
        ("simplecache::https://me@host/x?token=1", "simplecache::https://host/x"),
        ("zip://x.csv::https://[::1]:80/a.zip?token=1", "zip://x.csv::https://[::1]:80/a.zip"),
        ("/data/what?sig=1.parquet", "/data/what?sig=1.parquet"),
    ],
)
def test_what_is_left_of_a_url(url: str, shown: str) -> None:
    assert without_secrets(url) == shown


def test_what_a_store_says_is_shown_without_signatures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(f"403, url='https://host/x.parquet?{SIGNATURE}'")

    monkeypatch.setattr(SignedFileSystem, "info", refused)
    with pytest.raises(PermissionError, match=r"403, url='https://host/x\.parquet'") as raised:
        as_token_source(signed(tmp_path / "x.parquet"))
    assert SECRET not in str(raised.value)
