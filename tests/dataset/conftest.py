"""Prepared folders to load, copy and damage."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.flat_words import prepare


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Parquet file of columns n (lengths up to 64) and id."""
    rng = np.random.default_rng(11)
    path = tmp_path_factory.mktemp("table") / "x.parquet"
    pq.write_table(pa.table({"n": rng.integers(1, 65, 300), "id": rng.permutation(300)}), path)
    return path


@pytest.fixture(scope="session")
def pristine(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its prepared folder; not to be changed."""
    folder = tmp_path_factory.mktemp("pristine") / "set"
    prepare(table, length_column="n", id_column="id", max_seq_len=64, output=folder)
    return folder


@pytest.fixture
def prepared(pristine: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(pristine, tmp_path / "set"))


@pytest.fixture
def damaged(pristine: Path, tmp_path: Path) -> Callable[[str, bytes | None], Path]:
    """Copies the folder with one file's bytes replaced, or the file gone."""

    def make(name: str, content: bytes | None) -> Path:
        folder = tmp_path / "set"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(pristine, folder)
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(content)
        return folder

    return make
