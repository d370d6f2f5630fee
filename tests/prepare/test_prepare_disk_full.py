"""A full disk ends `prepare` with one clear line, before anything is written through a map, and leaves nothing."""

import errno
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests import commands
from tests.flat_words import prepare

from packhorse.dataset import arrays, create_array, open_prepared

SAID = re.compile(r"too little space: set needs more than ([0-9,]+) bytes and ([0-9,]+) are free; make room")
SMALL_DISK_BYTES = 1 << 20
ROWS = 400_000  # 1.6 MB of ids


@pytest.fixture(scope="session")
def many_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("many") / "x.parquet"
    pq.write_table(pa.table({"n": np.arange(ROWS) % 50 + 1}), path)
    return path


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB, where this user can mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "none", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if done.returncode:
        pytest.skip(f"cannot mount a small disk: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("flags", [[], ["--format", "seqpack"], ["--max-seq-len", "20", "--over-length", "split"]])
def test_a_small_disk_gives_one_line_and_stays_empty(small_disk: Path, many_rows: Path, flags: list[str]) -> None:
    command = ["prepare", "--input", str(many_rows), "--length-column", "n", "--max-seq-len", "64"]
    done = commands.run(*command, "--output", small_disk / "set", *flags)
    assert done.returncode == 1, done  # -7 would be SIGBUS
    found = SAID.search(done.stderr)
    assert found, done.stderr
    needed, free = (int(number.replace(",", "")) for number in found.groups())
    assert needed > 4 * ROWS
    assert free <= SMALL_DISK_BYTES
    assert str(small_disk) in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(small_disk.iterdir())


def test_a_disk_for_the_dataset_alone_is_too_small_for_the_work(small_disk: Path, tmp_path: Path) -> None:
    """What is needed meanwhile is said, and counted as free once it is given back."""
    rows = SMALL_DISK_BYTES // 6  # of 4 bytes each, as runs once more
    pq.write_table(pa.table({"n": np.arange(rows) % 50 + 1}), tmp_path / "x.parquet")
    with pytest.raises(OSError, match="too little space") as caught:
        prepare(tmp_path / "x.parquet", length_column="n", max_seq_len=64, output=small_disk / "set", progress=False)
    found = SAID.search(str(caught.value))
    assert found, caught.value
    needed, free = (int(number.replace(",", "")) for number in found.groups())
    assert free < needed == 8 * rows + 2 * 128
    assert free > 4 * rows
    assert not list(small_disk.iterdir())


def test_space_is_claimed_before_planning(tmp_path: Path, many_rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, num_bytes: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def plan(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("planned first")

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr("packhorse.prepare._sort.pack_histogram", plan)
    prepared = tmp_path / "old"
    for output in (tmp_path / "set", prepared):
        with pytest.raises(OSError, match="too little space") as caught:
            prepare(many_rows, length_column="n", max_seq_len=64, output=output)
        assert f"more than {4 * ROWS + 128:,} bytes" in str(caught.value)
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("cannot", [errno.EOPNOTSUPP, errno.EINVAL, None])
def test_where_space_cannot_be_claimed_zeros_are_written(
    tmp_path: Path, many_rows: Path, monkeypatch: pytest.MonkeyPatch, cannot: int | None
) -> None:
    def unsupported(descriptor: int, offset: int, num_bytes: int) -> None:
        assert cannot is not None
        raise OSError(cannot, "not here")

    if cannot is None:
        monkeypatch.delattr(os, "posix_fallocate")
    else:
        monkeypatch.setattr(os, "posix_fallocate", unsupported)
    create_array(tmp_path / "x.npy", "uint32", (1_000_000,))
    assert (tmp_path / "x.npy").stat().st_blocks * 512 >= 4_000_000
    assert not np.load(tmp_path / "x.npy").any()
    written: list[int] = []
    pwrite = os.pwrite

    def full_at_the_end(descriptor: int, data: bytes, offset: int) -> int:
        written.append(offset)
        if offset > 1_000_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(arrays.os, "pwrite", full_at_the_end)
    with pytest.raises(OSError, match="too little space"):
        prepare(many_rows, length_column="n", max_seq_len=64, output=tmp_path / "set")
    assert len(written) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


def test_every_mapped_file_owns_its_space(tmp_path: Path, many_rows: Path) -> None:
    claimed: dict[int, int] = {}
    fallocate = os.posix_fallocate

    def counting(descriptor: int, offset: int, num_bytes: int) -> None:
        fallocate(descriptor, offset, num_bytes)
        claimed[os.fstat(descriptor).st_ino] = num_bytes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "posix_fallocate", counting)
        prepare(many_rows, length_column="n", max_seq_len=20, over_length="split", output=tmp_path / "set")
    for name in ("pools.npy", "starts.npy", "over_length.npy"):
        status = (tmp_path / "set" / name).stat()
        assert claimed[status.st_ino] == status.st_size
    open_prepared(tmp_path / "set")


def test_a_disk_that_takes_no_more_is_told_with_the_output_and_no_hidden_folder(tmp_path):
    table = pa.table({"length": np.random.default_rng(0).integers(1, 200, 100_000)})
    pq.write_table(table, tmp_path / "lengths.parquet")
    command = ("prepare", "--input", "lengths.parquet", "--length-column", "length", "--max-seq-len", "256")
    most = 100 << 10
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, {most})); {commands.PACKHORSE}"
    result = commands.run(*command, "--output", "out", folder=tmp_path, code=limited)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "Error: out: File too large"
