"""Folders that the real seqpack wrote are read alike, or refused."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import seqpack.prepare
from tests.flat_words import prepare

from packhorse.dataset import PreparedDatasetError, is_seqpack_layout
from packhorse.prepare import load_prepared


@pytest.fixture(scope="session")
def made_by_seqpack(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seqpack") / "set"
    flags = ["--length-column", "n", "--id-column", "id", "--max-seq-len", "64", "--output", str(folder)]
    command = [sys.executable, "-m", "seqpack.prepare", "--input", str(table), *flags]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def test_reads_what_seqpack_reads(made_by_seqpack: Path, pristine: Path) -> None:
    assert is_seqpack_layout(made_by_seqpack)
    assert not is_seqpack_layout(pristine)
    manifest, counts, templates, pools = load_prepared(made_by_seqpack)
    expected = seqpack.prepare.load_prepared(made_by_seqpack)
    assert (manifest, counts, templates) == expected[:3]
    assert pools.keys() == expected[3].keys()
    for length, pool in pools.items():
        np.testing.assert_array_equal(pool, expected[3][length])
        assert pool.dtype == np.int64


def test_both_programs_find_the_same_counts_and_ids(made_by_seqpack: Path, pristine: Path) -> None:
    theirs, ours = load_prepared(made_by_seqpack), load_prepared(pristine)
    assert theirs[1] == ours[1]
    assert {length: sorted(pool.tolist()) for length, pool in theirs[3].items()} == {
        length: pool.tolist() for length, pool in ours[3].items()
    }
    assert theirs[0].keys() <= ours[0].keys()


def _drop_template(folder: Path) -> None:
    templates = json.loads((folder / "templates.json").read_text())
    (folder / "templates.json").write_text(json.dumps(templates[1:]))


def _shorten_pool(folder: Path) -> None:
    path = folder / "pools" / "7.npy"
    np.save(path, np.load(path)[:-1])


def _truncate_pool(folder: Path) -> None:
    path = folder / "pools" / "7.npy"
    path.write_bytes(path.read_bytes()[:-1])


def _open_bracket_in_header(folder: Path) -> None:
    path = folder / "pools" / "7.npy"
    path.write_bytes(path.read_bytes().replace(b")", b"(", 1))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), "manifest.json"),
    "no counts": (lambda folder: (folder / "counts.json").unlink(), "counts.json"),
    "no templates": (lambda folder: (folder / "templates.json").unlink(), "templates.json"),
    "no pool": (lambda folder: (folder / "pools" / "7.npy").unlink(), "pools/7.npy"),
    "pool cut off": (_truncate_pool, "pools/7.npy"),
    "pool header altered": (_open_bracket_in_header, "pools/7.npy"),
    "pool too short": (_shorten_pool, "pools/7.npy"),
    "plan incomplete": (_drop_template, "templates.json"),
    "counts no JSON": (lambda folder: (folder / "counts.json").write_text("{"), "JSON"),
    "manifest no object": (lambda folder: (folder / "manifest.json").write_text("[]"), "JSON"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_folders_are_refused(damage: str, made_by_seqpack: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made_by_seqpack, tmp_path / "set"))
    apply, said = DAMAGES[damage]
    apply(folder)
    with pytest.raises(PreparedDatasetError, match=said):
        load_prepared(folder)


def test_a_folder_of_seqpack_becomes_a_dataset(made_by_seqpack: Path, table: Path, tmp_path: Path) -> None:
    options = {"max_seq_len": 64, "id_column": "id", "progress": False}
    of_folder = prepare(made_by_seqpack, output=tmp_path / "folder", **options)
    of_table = prepare(table, length_column="n", output=tmp_path / "table", **options)
    assert of_folder.digest == of_table.digest
    assert of_folder.inputs.kind == "seqpack"
    assert of_folder.id_column == "id"
    without = prepare(made_by_seqpack, output=tmp_path / "rows", max_seq_len=64, progress=False)
    assert without.id_column is None
    assert load_prepared(tmp_path / "rows")[3].keys() == load_prepared(made_by_seqpack)[3].keys()
    with pytest.raises(ValueError, match="leave out length_column"):
        prepare(made_by_seqpack, output=tmp_path / "wrong", max_seq_len=64, length_column="n")


def test_what_is_written_for_seqpack_comes_back_through_it(table: Path, tmp_path: Path) -> None:
    options = {"max_seq_len": 64, "id_column": "id", "progress": False}
    before = prepare(table, length_column="n", output=tmp_path / "before", **options)
    prepare(table, length_column="n", output=tmp_path / "exported", format="seqpack", **options)
    assert seqpack.prepare.load_prepared(tmp_path / "exported")[1] == load_prepared(tmp_path / "before")[1]
    assert prepare(tmp_path / "exported", output=tmp_path / "again", **options).digest == before.digest


def test_an_id_in_two_pools_is_refused(made_by_seqpack: Path, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    shutil.copytree(made_by_seqpack, folder)
    ids = np.load(folder / "pools" / "7.npy")
    ids[0] = np.load(folder / "pools" / "8.npy")[0]
    np.save(folder / "pools" / "7.npy", ids)
    with pytest.raises(ValueError, match=r"occurs 2 times .*7\.npy"):
        prepare(folder, output=tmp_path / "out", max_seq_len=64, progress=False)
