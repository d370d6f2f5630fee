"""`prepare` of what lies in an object store: the folder that the same files on a disk give."""

from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs
from click.testing import CliRunner
from tests.flat_words import prepare
from tests.stores import Bucket

from packhorse.cli.prepare import command
from packhorse.formats import MegatronWriter, write_flat_tokens

DATA = Path(__file__).parents[1] / "data"
ROWS = [list(range(n)) for n in np.random.default_rng(1).integers(1, 60, 300).tolist()]
LENGTHS = np.array(list(map(len, ROWS)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same sequences in every kind of file."""
    import datasets

    folder = tmp_path_factory.mktemp("files")
    table = pa.table({"tokens": ROWS, "n": LENGTHS, "id": np.arange(300) * 7})
    (folder / "parts").mkdir()
    for number in range(3):
        part = table[number * 100 : (number + 1) * 100]
        pq.write_table(part, folder / "parts" / f"{number}.parquet", row_group_size=30)
    for name, new in (("file", pa.ipc.new_file), ("stream", pa.ipc.new_stream)):
        with new(str(folder / f"{name}.arrow"), table.schema) as writer:
            writer.write_table(table, max_chunksize=70)
    datasets.Dataset(table).save_to_disk(folder / "saved", num_shards=2)
    np.save(folder / "lengths.npy", LENGTHS)
    records = np.zeros(300, dtype=[("n", "<i4"), ("id", "<i8")])
    records["n"], records["id"] = LENGTHS, np.arange(300) * 7
    np.save(folder / "records.npy", records)
    with MegatronWriter(folder / "corpus", vocab_size=100) as writer:
        for row in ROWS:
            writer.append(row)
    write_flat_tokens(folder / "flat.bin", ROWS, np.uint16)
    return folder


KINDS: list[tuple[str, dict[str, Any]]] = [
    ("parts", {"length_column": "n"}),
    ("parts/*.parquet", {"length_column": "tokens", "id_column": "id"}),
    ("parts/1.parquet", {}),
    ("file.arrow", {"length_column": "n", "id_column": "id"}),
    ("stream.arrow", {}),
    ("saved", {}),
    ("lengths.npy", {}),
    ("records.npy", {"length_column": "n", "id_column": "id"}),
    ("corpus.idx", {}),
    ("corpus", {}),
    ("flat.bin", {}),
]


@pytest.mark.parametrize(("name", "columns"), KINDS)
def test_a_store_gives_the_dataset_that_a_disk_gives(
    folder: Path, bucket: Bucket, tmp_path: Path, name: str, columns: dict[str, Any]
) -> None:
    root = name.partition("/")[0]
    for path in sorted(folder.glob(f"{root}*")):
        (bucket.put_folder if path.is_dir() else bucket.put)(f"deep/{path.name}", path)
    options: dict[str, Any] = {"max_seq_len": 64, "progress": False, **columns}
    there = prepare(f"{bucket.url}/deep/{name}", output=tmp_path / "there", **options)
    here = prepare(str(folder / name), output=tmp_path / "here", **options)
    assert there.digest == here.digest
    assert there.inputs is not None
    assert here.inputs is not None
    assert there.inputs.kind == here.inputs.kind
    assert [file.name for file in there.inputs.files] == [file.name for file in here.inputs.files]
    assert all(file.etag and file.modified_ns for file in there.inputs.files)
    assert all(file.etag is None for file in here.inputs.files)


def test_shards_of_mosaicml(bucket: Bucket, tmp_path: Path) -> None:
    url = bucket.put_folder("mds", DATA / "mds")
    options: dict[str, Any] = {"max_seq_len": 512, "length_column": "input_ids", "progress": False}
    there = prepare(url, output=tmp_path / "there", **options)
    assert there.digest == prepare(DATA / "mds", output=tmp_path / "here", **options).digest


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_several_urls(folder: Path, bucket: Bucket, tmp_path: Path, workers: int) -> None:
    url = bucket.put_folder("parts", folder / "parts")
    inputs = [f"{url}/2.parquet", (folder / "parts" / "0.parquet").as_uri()]
    options: dict[str, Any] = {"max_seq_len": 64, "length_column": "n", "progress": False}
    there = prepare(inputs, output=tmp_path / "there", workers=workers, **options)
    local = [folder / "parts" / f"{number}.parquet" for number in (2, 0)]
    assert there.digest == prepare(local, output=tmp_path / "here", **options).digest
    assert there.source == "2.parquet, 0.parquet"


def test_a_store_in_memory(folder: Path, tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/held/a.parquet", (folder / "parts" / "0.parquet").read_bytes())
    manifest = prepare("memory://held/*.parquet", length_column="n", max_seq_len=64, output=tmp_path / "out")
    memory.rm("/held", recursive=True)
    assert manifest.num_sequences == 100


@pytest.mark.parametrize(
    ("change", "said"),
    [("content", "changed since"), ("another", "was not read then")],
)
def test_resuming_with_other_objects_is_refused(
    folder: Path, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, said: str
) -> None:
    url = bucket.put_folder("parts", folder / "parts")
    options: dict[str, Any] = {"length_column": "n", "max_seq_len": 64, "output": tmp_path / "out", "progress": False}

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("packhorse.prepare._sort.Sort._merge", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare(url, **options)
    if change == "content":  # of the same size: its ETag tells
        table = pq.read_table(folder / "parts" / "1.parquet")
        pq.write_table(table.set_column(1, "n", pa.array(LENGTHS[:100])), tmp_path / "1.parquet", row_group_size=30)
        bucket.put("parts/1.parquet", tmp_path / "1.parquet")
    else:
        bucket.put("parts/3.parquet", folder / "parts" / "2.parquet")
    with pytest.raises(ValueError, match=rf"resume cannot continue.*{said}"):
        prepare(url, resume=True, **options)
    prepare(url, **options)


def test_an_object_that_changes_while_it_is_read(
    folder: Path, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from packhorse.prepare._sort import Sort

    url = bucket.put("0.parquet", folder / "parts" / "0.parquet")
    plan = Sort.plan

    def change(*arguments: Any) -> Any:
        bucket.put("0.parquet", folder / "parts" / "1.parquet")
        return plan(*arguments)

    monkeypatch.setattr(Sort, "plan", change)
    with pytest.raises(ValueError, match=r"0\.parquet changed while it was being prepared"):
        prepare(url, length_column="n", max_seq_len=64, output=tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def test_appending_from_a_store(folder: Path, bucket: Bucket, tmp_path: Path) -> None:
    url = bucket.put_folder("parts", folder / "parts")
    options: dict[str, Any] = {"length_column": "n", "max_seq_len": 64, "output": tmp_path / "out", "progress": False}
    prepare(f"{url}/0.parquet", **options)
    grown = prepare(f"{url}/[12].parquet", append=True, **options)
    assert grown.inputs is not None
    assert (grown.version, grown.inputs.rows, grown.inputs.num_files) == (2, 300, 3)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://{bucket}/none.parquet", r"s3://bucket-\w+/none\.parquet does not exist"),
        ("s3://no-such-bucket/x.parquet", r"s3://no-such-bucket/x\.parquet does not exist"),
        ("s3://{bucket}/none/*.parquet", r"no object matches s3://bucket-\w+/none/\*\.parquet"),
        ("nothing://bucket/x.parquet", r"nothing://bucket/x\.parquet: .*install a file system for such URLs"),
    ],
)
def test_nothing_there(bucket: Bucket, tmp_path: Path, url: str, said: str) -> None:
    with pytest.raises((FileNotFoundError, ValueError), match=said):
        prepare(url.format(bucket=bucket.name), max_seq_len=64, output=tmp_path / "out")


def test_without_credentials(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3fs.S3FileSystem.clear_instance_cache()
    arguments = ["--input", f"{bucket.url}/x.parquet", "--max-seq-len", "64", "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(command, arguments)
    assert isinstance(result.exception, PermissionError)
    assert f"{bucket.url}/x.parquet" in str(result.exception)
    assert "AWS_ACCESS_KEY_ID" in str(result.exception)
    s3fs.S3FileSystem.clear_instance_cache()


def test_an_extra_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match=r"gs://bucket/x\.parquet: .*gcsfs.*packhorse\[stores\]"):
        prepare("gs://bucket/x.parquet", max_seq_len=64, output=tmp_path / "out")


def test_no_secret_is_told(tmp_path: Path) -> None:
    with pytest.raises((OSError, ImportError)) as failure:
        prepare("sftp://me:hidden@127.0.0.1:1/x.npy?token=hidden", max_seq_len=64, output=tmp_path / "out")
    assert "hidden" not in str(failure.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_seq_len": 4}, r"sequence 1 \(row 1 of http://[^?]*/x\.parquet\) has 5 tokens"),
        ({"id_column": "id"}, r"id 7 occurs 2 times \(row 0 of http://[^?]*/x\.parquet, length 3; row 1 of http"),
        ({"id_column": "id", "group_size": 3}, r"id 7 occurs 2 times \(row 0 of http://[^?]*/x\.parquet, length 3"),
        ({"group_column": "group"}, r"http://[^?]*/x\.parquet: row 2 is of group -1"),
        ({"over_length": "split"}, r"http://[^?]*/x\.parquet: row 2 has 2199023255552 tokens"),
    ],
)
def test_a_refused_row_is_named_without_the_signature(
    bucket: Bucket, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    lengths = [3, 5, 1 << 41 if "over_length" in options else 2]
    pq.write_table(pa.table({"n": lengths, "id": [7, 7, 8], "group": [0, 0, -1]}), tmp_path / "x.parquet")
    bucket.put("x.parquet", tmp_path / "x.parquet")
    url = f"http://127.0.0.1:{bucket.port}/{bucket.name}/x.parquet?X-Amz-Signature=hidden"
    arguments = {"length_column": "n", "max_seq_len": 16, "progress": False} | options
    with pytest.raises(ValueError, match=message) as failure:
        prepare(url, output=tmp_path / "out", **arguments)
    assert "hidden" not in str(failure.value)


def test_a_dry_run_reads_it_too(folder: Path, bucket: Bucket, tmp_path: Path) -> None:
    url = bucket.put("lengths.npy", folder / "lengths.npy")
    arguments = ["--input", url, "--max-seq-len", "64", "--output", str(tmp_path / "out"), "--dry-run"]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert "NumPy, 300 rows" in result.output
