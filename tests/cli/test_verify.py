"""`packhorse verify`: every kind of difference between a folder, its checksums and the tokens is found and named."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from tests.flat_words import prepare

from packhorse.cli import main
from packhorse.formats import MegatronWriter

LENGTHS = np.random.default_rng(5).integers(1, 200, 300)
IDS = np.random.default_rng(6).permutation(10_000)[:300]
WAYS: dict[str, dict[str, Any]] = {
    "plain": {"max_seq_len": 256},
    "rooms": {"max_seq_len": 256, "align": 16, "extra_tokens": 2},
    "drop": {"max_seq_len": 100, "over_length": "drop"},
    "head": {"max_seq_len": 100, "over_length": "truncate"},
    "tail": {"max_seq_len": 100, "over_length": "truncate", "keep": "tail", "align": 8},
    "split": {"max_seq_len": 70, "over_length": "split", "extra_tokens": 1},
}


def write_tokens(path: Path, lengths: Any) -> None:
    with MegatronWriter(path, vocab_size=100, overwrite=True) as writer:
        for length in lengths:
            writer.append(np.ones(length, dtype=np.int64))


def write_table(path: Path, lengths: Any, ids: Any) -> None:
    rows = [[1] * int(length) for length in lengths]
    pq.write_table(pa.table({"id": ids, "tokens": rows}), path, row_group_size=40)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Token files in both forms, and a dataset of each way to plan them."""
    folder = tmp_path_factory.mktemp("verify")
    write_tokens(folder / "corpus", LENGTHS)
    write_table(folder / "corpus.parquet", LENGTHS, IDS)
    for name, options in WAYS.items():
        prepare(folder / "corpus.idx", output=folder / name, progress=False, **options)
    prepare(folder / "corpus.parquet", id_column="id", max_seq_len=256, output=folder / "by_column", progress=False)
    return folder


def verify(*arguments: object) -> Result:
    result = CliRunner().invoke(main, ["verify", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def problems(*arguments: object) -> list[str]:
    result = verify(*arguments, "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code == 0) == found["ok"] == (not found["problems"])
    return found["problems"]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_as_it_was_prepared_passes(made: Path, way: str) -> None:
    result = verify(made / way, "--tokens", made / "corpus.idx")
    assert result.exit_code == 0, result.output
    assert "as it was prepared: yes" in result.output
    found = json.loads(verify(made / way, "--tokens", made / "corpus.idx", "--json").stdout)["lengths"]
    assert found["compared"] == found["entries"] >= 300
    assert found["differing"] == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", [-1, 1])
def test_every_changed_length_is_found(made: Path, tmp_path: Path, way: str, change: int) -> None:
    """Of a short sequence, and of one that is too long for a bin of some of the ways."""
    for index in (int(np.flatnonzero(LENGTHS < 60)[0]), int(LENGTHS.argmax())):
        lengths = LENGTHS.copy()
        lengths[index] += change
        write_tokens(tmp_path / "corpus", lengths)
        first = problems(made / way, "--tokens", tmp_path / "corpus.idx")[0]
        if way in ("rooms", "tail") and f"sequence {index}:" not in first:  # the room is the same
            assert "tokens together, and had" in first
        else:
            assert first.startswith(f"sequence {index}: ")
            assert str(lengths[index]) in first


def test_ids_of_a_column(made: Path, tmp_path: Path) -> None:
    folder = made / "by_column"
    assert not problems(folder, "--tokens", made / "corpus.parquet")
    lengths = LENGTHS.copy()
    lengths[17] += 1
    write_table(tmp_path / "corpus.parquet", lengths, IDS)
    (found,) = problems(folder, "--tokens", tmp_path / "corpus.parquet")
    assert found == f"sequence {IDS[17]}: the plan says {LENGTHS[17]} tokens, and {lengths[17]} are there"
    with_row_numbers = verify(folder, "--tokens", made / "corpus.idx")
    assert with_row_numbers.exit_code == 1
    assert "ids come from the column 'id'" in with_row_numbers.output


@pytest.mark.long
@pytest.mark.parametrize("name", ["by_column", "split"])
def test_processes_of_their_own_find_the_same(made: Path, name: str) -> None:
    tokens = made / ("corpus.parquet" if name == "by_column" else "corpus.idx")
    found = [json.loads(verify(made / name, "--tokens", tokens, "--workers", n, "--json").stdout) for n in (1, 2)]
    assert found[0] == found[1]
    assert found[0]["lengths"]["compared"] >= 300


def test_missing_and_additional_sequences(made: Path, tmp_path: Path) -> None:
    write_tokens(tmp_path / "corpus", LENGTHS[:-3])
    found = problems(made / "plain", "--tokens", tmp_path / "corpus.idx")
    assert sorted(found) == [f"sequence {index}: it is missing" for index in (297, 298, 299)]
    write_tokens(tmp_path / "corpus", [*LENGTHS, 7])
    (found_one,) = problems(made / "plain", "--tokens", tmp_path / "corpus.idx")
    assert found_one.endswith("corpus.idx holds 301 sequences, and the dataset was prepared from 300")
    write_tokens(tmp_path / "corpus", LENGTHS[:100])
    found = problems(made / "plain", "--tokens", tmp_path / "corpus.idx")
    assert len(found) <= 12
    assert all("it is missing" in line or "more entries of the plan differ" in line for line in found)


def test_a_sample_is_part_of_the_whole(made: Path, tmp_path: Path) -> None:
    result = verify(made / "split", "--tokens", made / "corpus.idx", "--sample", 50)
    assert result.exit_code == 0
    assert "50 of " in result.output
    write_tokens(tmp_path / "corpus", LENGTHS + 1)
    found = json.loads(verify(made / "plain", "--tokens", tmp_path / "corpus.idx", "--sample", 50, "--json").stdout)
    assert found["lengths"]["differing"] == found["lengths"]["compared"] == 50
    assert len(found["lengths"]["first"]) == 10
    assert found["problems"][-1] == "40 more entries of the plan differ"


@pytest.mark.parametrize("name", ["manifest.json", "counts.json", "templates.json", "pools.npy", "starts.npy"])
def test_an_altered_file_is_named(made: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "split"
    shutil.copytree(made / "split", folder)
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    (found,) = problems(folder)
    assert name in found
    assert "WRONG: " in verify(folder).output


def test_flags_that_do_not_go_together(made: Path) -> None:
    result = verify(made / "plain", "--sample", 3)
    assert result.exit_code == 2
    assert "give --tokens as well" in result.output
    assert "is not a folder" in verify(made / "nothing").output


def test_versions_of_a_dataset_that_grew(made: Path, tmp_path: Path) -> None:
    tokens, folder = made / "corpus.parquet", tmp_path / "grown"
    table = pq.read_table(tokens)
    for name, part in (("first", table[:200]), ("second", table[200:])):
        pq.write_table(part, tmp_path / f"{name}.parquet")
        prepare(tmp_path / f"{name}.parquet", max_seq_len=256, output=folder, progress=False, append=(name == "second"))
    assert verify(folder, "--all-versions", "--tokens", tokens).exit_code == 0
    array = folder / "versions" / "1" / "pools.npy"
    data = bytearray(array.read_bytes())
    data[-1] ^= 1
    array.unlink()
    array.write_bytes(data)
    assert verify(folder).exit_code == verify(folder, "--version", 2).exit_code == 0
    (problem,) = problems(folder, "--version", 1)
    assert "pools.npy" in problem
    every = verify(folder, "--all-versions", "--json")
    assert every.exit_code == 1
    assert [(one["version"], one["ok"]) for one in json.loads(every.stdout)] == [(2, True), (1, False)]
    assert "grown, version 2 " in verify(folder).output
    assert "as it was prepared: no" in verify(folder, "--all-versions").output
    for given in (folder, tmp_path):  # a dataset, and a folder that holds it
        lines = verify(given, "--all-versions").output.splitlines()
        assert [line.rpartition(" ")[0] for line in lines if line.startswith(("grown", "1"))] == [
            "grown, version 2",
            "grown, version 1",
        ]
    assert "there is no --version 7; " in verify(folder, "--version", 7).output
    assert "give one of them" in verify(folder, "--version", 1, "--all-versions").output


def test_a_data_root_has_all_its_datasets_verified(made: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("plain", "rooms"):
        shutil.copytree(made / name, root / name)
    result = verify(root)
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["plain", "3", "rooms", "3", "as"]
    (root / "rooms" / "manifest.json").write_text("{")
    result = verify(root, "--json")
    assert result.exit_code == 1
    assert [(Path(each["folder"]).name, each["ok"]) for each in json.loads(result.stdout)] == [
        ("plain", True),
        ("rooms", False),
    ]
    for flags in (("--tokens", made / "corpus.idx"), ("--version", "1")):
        assert "holds several; name one" in verify(root, *flags).stderr
    (tmp_path / "empty").mkdir()
    assert "WRONG: empty/manifest.json is missing" in verify(tmp_path / "empty").stderr


@pytest.mark.parametrize("sample", [[], ["--sample", 50]])
def test_other_tokens_of_the_same_lengths_are_found_by_their_fingerprint(made: Path, tmp_path: Path, sample) -> None:
    right = verify(made / "plain", "--tokens", made / "corpus.idx", *sample)
    assert "tokens compared by a fingerprint of up to 64 sequences" in right.output
    with MegatronWriter(tmp_path / "corpus", vocab_size=60_000) as writer:
        for length in LENGTHS:
            writer.append(np.full(length, 59_999))
    [problem] = problems(made / "plain", "--tokens", tmp_path / "corpus.idx", *sample)
    assert "other tokens of the same lengths" in problem
