"""`prepare --append`: a new version of a dataset, as if all were prepared at once; the versions before stay whole."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.flat_words import dry_run, prepare

from packhorse.cli import main
from packhorse.dataset import PreparedDatasetError, link_versions, open_prepared, prune_version, versions_of
from packhorse.formats import MegatronWriter
from packhorse.prepare import _sort
from packhorse.server.datasets.catalog import Catalog


def write(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


def arrays(folder: Path) -> dict[str, bytes]:
    names = ("pools.npy", "starts.npy", "over_length.npy", "counts.json", "templates.json")
    return {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}


@st.composite
def corpora(draw: st.DrawFn) -> dict[str, Any]:
    sizes = draw(st.lists(st.integers(1, 30), min_size=2, max_size=3))
    low, high = draw(st.sampled_from([(0, 60), (0, 2**32 + 5), (-(2**63), 2**63 - 1)]))
    total = sum(sizes)
    lengths = st.integers(1, 40)
    return {
        "sizes": sizes,
        "lengths": draw(st.lists(lengths, min_size=total, max_size=total)),
        "ids": draw(
            st.none() | st.lists(st.integers(low, max(high, total)), min_size=total, max_size=total, unique=True)
        ),
        "over_length": draw(st.sampled_from(["drop", "truncate", "split"])),
        "keep": draw(st.sampled_from(["head", "tail"])),
    }


@settings(max_examples=25)
@given(corpora())
def test_a_dataset_that_grew_is_the_one_prepared_at_once(corpus: dict[str, Any]) -> None:
    if corpus["over_length"] != "truncate":
        corpus["keep"] = "head"
    options: dict[str, Any] = {
        "length_column": "n",
        "id_column": "id" if corpus["ids"] else None,
        "max_seq_len": 24,
        "over_length": corpus["over_length"],
        "keep": corpus["keep"],
        "progress": False,
        "workers": 1,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths, begin = [], 0
        for number, size in enumerate(corpus["sizes"]):
            rows = slice(begin, begin + size)
            columns = {"n": pa.array(corpus["lengths"][rows], "int64")}
            if corpus["ids"]:
                columns["id"] = pa.array(corpus["ids"][rows], "int64")
            paths.append(write(folder / f"{number}.parquet", columns))
            begin += size
        if corpus["over_length"] == "drop" and any(
            min(corpus["lengths"][sum(corpus["sizes"][:i]) :][:size]) > 24 for i, size in enumerate(corpus["sizes"])
        ):
            return  # nothing is left of a part, which is refused
        prepare(paths[0], output=folder / "grown", **options)
        for path in paths[1:]:
            grown = prepare(path, output=folder / "grown", append=True, **options)
        whole = prepare(paths, output=folder / "whole", **options)
        assert arrays(folder / "grown") == arrays(folder / "whole")
        assert (grown.digest, grown.over_length) == (whole.digest, whole.over_length)
        assert (grown.ids_sum_a, grown.ids_sum_b) == (whole.ids_sum_a, whole.ids_sum_b)
        assert grown.own_tokens == whole.own_tokens
        assert grown.inputs == whole.inputs
        assert grown.version == len(paths)
        assert open_prepared(folder / "grown").manifest == grown


@pytest.fixture
def grown(tmp_path: Path) -> Path:
    """A folder of three versions with 3, 5 and 6 sequences."""
    for number, lengths in enumerate(([3, 1, 2], [4, 4], [7])):
        write(tmp_path / f"{number}.parquet", {"n": lengths})
        options: dict[str, Any] = {"length_column": "n", "max_seq_len": 8, "progress": False}
        prepare(tmp_path / f"{number}.parquet", output=tmp_path / "set", append=number > 0, **options)
    return tmp_path / "set"


def test_every_version_stays_a_prepared_folder(grown: Path) -> None:
    versions = versions_of(grown)
    assert [(v.number, v.is_current, v.manifest.num_sequences) for v in versions] == [
        (3, True, 6),
        (2, False, 5),
        (1, False, 3),
    ]
    assert [v.path.relative_to(grown).as_posix() for v in versions] == [".", "versions/2", "versions/1"]
    assert len({v.manifest.digest for v in versions}) == 3
    for version in versions:
        assert open_prepared(version.path).manifest == version.manifest
    assert [file.name for file in versions[0].manifest.inputs.files] == ["0.parquet", "1.parquet", "2.parquet"]  # type: ignore[union-attr]
    assert [path.name for path in grown.parent.iterdir() if path.name.startswith(".")] == []


def test_who_has_the_version_before_open_keeps_it(tmp_path: Path) -> None:
    options: dict[str, Any] = {"length_column": "n", "max_seq_len": 8, "output": tmp_path / "set", "progress": False}
    prepare(write(tmp_path / "a.parquet", {"n": [3, 1, 2]}), **options)
    first = open_prepared(tmp_path / "set")
    inode = os.stat(tmp_path / "set" / "pools.npy").st_ino
    prepare(write(tmp_path / "b.parquet", {"n": [5]}), append=True, **options)
    assert first.pool.tolist() == [1, 2, 0]
    assert open_prepared(tmp_path / "set").pool.tolist() == [1, 2, 0, 3]
    assert os.stat(tmp_path / "set" / "versions" / "1" / "pools.npy").st_ino == inode  # linked, not copied


def test_lists_that_a_manifest_cannot_hold_go_on(tmp_path: Path) -> None:
    """More than a hundred files, and skipped rows, stand in files of their own."""
    (tmp_path / "in").mkdir()
    for number in range(103):
        write(tmp_path / "in" / f"{number:03}.parquet", {"n": pa.array([3, None, 1 + number % 7, 0])})
    paths = sorted((tmp_path / "in").iterdir())
    options: dict[str, Any] = {"length_column": "n", "max_seq_len": 8, "on_bad_row": "skip", "progress": False}
    prepare(paths[:101], output=tmp_path / "set", **options)
    grown = prepare(paths[101:], output=tmp_path / "set", append=True, **options)
    whole = prepare(paths, output=tmp_path / "whole", **options)
    assert (grown.digest, grown.inputs) == (whole.digest, whole.inputs)
    assert grown.inputs is not None
    assert (grown.inputs.num_files, grown.inputs.skipped.rows) == (103, 206)
    assert grown.inputs.skipped.by_reason == {"the length is below 1 token": 103, "the length is null": 103}
    for name in ("inputs.jsonl", "skipped.jsonl"):
        assert (tmp_path / "set" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    open_prepared(tmp_path / "set")


def test_what_a_server_has_open_is_served_on(tmp_path: Path) -> None:
    options: dict[str, Any] = {"length_column": "n", "max_seq_len": 8, "output": tmp_path / "set", "progress": False}
    (tmp_path / "in").mkdir()
    prepare(write(tmp_path / "in" / "a.parquet", {"n": [3, 1, 2]}), **options)
    catalog = Catalog(tmp_path)
    first = catalog.get("set")
    prepare(write(tmp_path / "in" / "b.parquet", {"n": [5]}), append=True, **options)
    prune_version(tmp_path / "set", 1)
    catalog.confirm(first)
    assert first.pool.tolist() == [1, 2, 0]
    assert Catalog(tmp_path).get("set").manifest.version == 2


def test_where_nothing_can_be_linked_files_are_copied(
    tmp_path: Path, grown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*arguments: Any) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", cannot)
    link_versions(grown, tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "new" / "versions").iterdir()) == ["1", "2", "3"]
    assert open_prepared(tmp_path / "new" / "versions" / "3").manifest == open_prepared(grown).manifest


def test_versions_are_pruned_but_never_the_current_one(grown: Path) -> None:
    digest = open_prepared(grown).manifest.digest
    for number, said in ((3, "is the current one, which stays; earlier ones are 2, 1|1, 2"), (9, "is not there")):
        with pytest.raises(ValueError, match=rf"version {number} of .*set {said}"):
            prune_version(grown, number)
    prune_version(grown, 1)
    assert [v.number for v in versions_of(grown)] == [3, 2]
    prune_version(grown, 2)
    assert not (grown / "versions").exists()
    assert open_prepared(grown).manifest.digest == digest
    assert versions_of(grown)[0].number == 3


@pytest.mark.shelf
def test_commands_list_and_prune(grown: Path) -> None:
    runner = CliRunner()
    shown = runner.invoke(main, ["inspect", str(grown)], catch_exceptions=False)
    for version in versions_of(grown):
        assert version.manifest.digest in shown.output
    assert "version 3 (current): 6 sequences" in shown.output
    assert "version 3 (current): 6" in runner.invoke(main, ["inspect", str(grown)], catch_exceptions=False).output
    refused = runner.invoke(main, ["inspect", str(grown), "--prune", "3"])
    assert refused.exit_code == 1
    assert "is the current one" in refused.output
    done = runner.invoke(
        main, ["inspect", str(grown), "--prune", "1", "--prune", "2", "--json"], catch_exceptions=False
    )
    assert '"version": 3' in done.output
    assert '"version": 2' not in done.output
    more = write(grown.parent / "more.parquet", {"n": [4]})
    flags = ["prepare", "--input", str(more), "--length-column", "n", "--max-seq-len", "8"]
    appended = runner.invoke(main, [*flags, "--output", str(grown), "--append"], catch_exceptions=False)
    assert "version      4" in appended.output


def test_overwrite_removes_no_earlier_version(grown: Path) -> None:
    options: dict[str, Any] = {"length_column": "n", "max_seq_len": 8, "output": grown, "progress": False}
    with pytest.raises(
        FileExistsError, match=r"earlier versions \(1, 2\).*packhorse inspect .*set --prune 1 --prune 2"
    ):
        prepare(grown.parent / "0.parquet", overwrite=True, **options)
    assert len(versions_of(grown)) == 3
    (grown / "versions" / "1" / "notes.txt").touch()
    with pytest.raises(FileExistsError, match="holds 'versions'"):
        prepare(write(grown.parent / "more.parquet", {"n": [4]}), append=True, **options)


def test_an_interrupted_append_leaves_the_version_before_and_resumes(
    grown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_prepared(grown).manifest
    options: dict[str, Any] = {"length_column": "n", "max_seq_len": 8, "output": grown, "progress": False}
    more = write(grown.parent / "more.parquet", {"n": [6, 6]})

    def stopped(*arguments: Any, **keywords: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_sort, "seal", stopped)
        with pytest.raises(KeyboardInterrupt):
            prepare(more, append=True, **options)
    assert open_prepared(grown).manifest == before
    assert [v.number for v in versions_of(grown)] == [3, 2, 1]
    assert prepare(more, append=True, resume=True, **options).num_sequences == 8
    assert [v.number for v in versions_of(grown)] == [4, 3, 2, 1]
    for version in versions_of(grown):
        open_prepared(version.path)


def test_a_dry_run_plans_the_next_version(grown: Path) -> None:
    options: dict[str, Any] = {"length_column": "n", "max_seq_len": 8, "output": grown, "progress": False}
    found = dry_run(write(grown.parent / "more.parquet", {"n": [4]}), append=True, **options)
    assert (found.inputs.rows, found.stats.n_sequences) == (7, 7)
    assert len(versions_of(grown)) == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_seq_len": 16}, "max_seq_len was 8 and is 16"),
        ({"align": 2}, "align was 1 and is 2"),
        ({"id_column": "id"}, "id_column was None and is id"),
        ({"overwrite": True}, "append goes neither with overwrite=True"),
        ({"format": "seqpack"}, "seqpack's layout"),
    ],
)
def test_what_does_not_continue_a_dataset_is_refused(grown: Path, options: dict[str, Any], said: str) -> None:
    source = write(grown.parent / "x.parquet", {"n": [1, 2], "id": [1, 2]})
    arguments: dict[str, Any] = {"length_column": "n", "max_seq_len": 8, "output": grown, "append": True, **options}
    with pytest.raises(ValueError, match=said):
        prepare(source, **arguments)
    assert open_prepared(grown).manifest.version == 3


def test_other_kinds_and_absent_datasets_are_refused(grown: Path) -> None:
    write_index(grown.parent / "x", [2])
    with pytest.raises(ValueError, match="prepared from Parquet, and the input is Megatron"):
        prepare(grown.parent / "x.idx", max_seq_len=8, output=grown, append=True)
    np.save(grown.parent / "x.npy", np.array([1, 2]))
    with pytest.raises(ValueError, match=r"prepared from Parquet, and the input is NumPy"):
        prepare(grown.parent / "x.npy", max_seq_len=8, output=grown, append=True)
    with pytest.raises(FileNotFoundError, match="not there to append to"):
        prepare(grown.parent / "0.parquet", length_column="n", max_seq_len=8, output=grown.parent / "no", append=True)
    (grown / "versions" / "1" / "manifest.json").unlink()
    with pytest.raises(PreparedDatasetError, match=r"1/manifest\.json is missing"):
        versions_of(grown)


def write_index(prefix: Path, lengths: list[int]) -> None:
    with MegatronWriter(prefix, vocab_size=10, overwrite=True) as writer:
        for length in lengths:
            writer.append([1] * length)


@pytest.mark.parametrize("over_length", ["drop", "split"])
def test_an_index_that_grew_is_given_whole(tmp_path: Path, over_length: str) -> None:
    options: dict[str, Any] = {"max_seq_len": 8, "over_length": over_length, "output": tmp_path / "set"}
    write_index(tmp_path / "x", [3, 1, 20, 3])
    prepare(tmp_path / "x.idx", **options)
    before = arrays(tmp_path / "set")
    for refused, said in (
        ([3, 1, 20, 3], "prepared from 4 rows, and the input holds no more"),
        ([1, 3, 20, 3, 5], r"x\.idx does not hold what set was prepared from"),
        ([3, 1, 20, 4, 3], r"x\.idx does not hold what set was prepared from"),
    ):
        write_index(tmp_path / "x", refused)
        with pytest.raises(ValueError, match=said):
            prepare(tmp_path / "x.idx", append=True, **options)
        assert arrays(tmp_path / "set") == before
    write_index(tmp_path / "x", [3, 1, 20, 3, 7, 9])
    grown = prepare(tmp_path / "x.idx", append=True, **options)
    whole = prepare(tmp_path / "x.idx", **{**options, "output": tmp_path / "whole"})
    assert (grown.digest, grown.version, grown.inputs) == (whole.digest, 2, whole.inputs)
    assert arrays(tmp_path / "set" / "versions" / "1") == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ([24], [16, 8]),  # the pieces of one sequence, and then of two
        ([24, 8], [8, 24, 4]),
        ([24, 24, 4], [8, 8, 4, 8, 8]),
        ([20], [12, 8]),
        ([3, 8], [3, 24, 4]),  # the sequence has more tokens now, and so more pieces
        ([3, 8], [3, 16, 4]),
    ],
)
def test_a_sequence_in_other_pieces_is_told_from_the_one_before(tmp_path: Path, old: list[int], new: list[int]) -> None:
    options: dict[str, Any] = {"max_seq_len": 8, "over_length": "split", "output": tmp_path / "set"}
    write_index(tmp_path / "x", old)
    prepare(tmp_path / "x.idx", **options)
    before = arrays(tmp_path / "set")
    write_index(tmp_path / "x", new)
    with pytest.raises(ValueError, match=r"x\.idx does not hold what set was prepared from"):
        prepare(tmp_path / "x.idx", append=True, **options)
    assert arrays(tmp_path / "set") == before
    write_index(tmp_path / "x", [*old, *new])
    assert prepare(tmp_path / "x.idx", append=True, **options).version == 2


def test_a_dropped_sequence_that_comes_back_is_told_from_a_new_one(tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_seq_len": 8, "over_length": "drop", "output": tmp_path / "set"}
    write_index(tmp_path / "x", [3, 20])
    prepare(tmp_path / "x.idx", **options)
    write_index(tmp_path / "x", [3, 5, 4])
    with pytest.raises(ValueError, match=r"x\.idx does not hold what set was prepared from"):
        prepare(tmp_path / "x.idx", append=True, **options)


def test_an_id_that_is_there_already_is_named(tmp_path: Path) -> None:
    options: dict[str, Any] = {"length_column": "n", "id_column": "id", "max_seq_len": 8, "output": tmp_path / "set"}
    prepare(write(tmp_path / "a.parquet", {"n": [3, 1], "id": [70, 71]}), **options)
    before = arrays(tmp_path / "set")
    again = write(tmp_path / "b.parquet", {"n": [2, 2], "id": [72, 71]})
    with pytest.raises(
        ValueError, match=r"id 71 is in set already and comes again \(row 1 of .*b\.parquet, length 2\)"
    ):
        prepare(again, append=True, **options)
    assert arrays(tmp_path / "set") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet", "b.parquet", "set"]


def test_a_file_that_is_given_again_is_refused_and_one_that_was_rewritten_is_told_by_its_ids(tmp_path: Path) -> None:
    options: dict[str, Any] = {"length_column": "n", "id_column": "id", "max_seq_len": 8, "output": tmp_path / "set"}
    source = write(tmp_path / "a.parquet", {"n": [3, 1], "id": [70, 71]})
    prepare(source, **options)
    before = arrays(tmp_path / "set")
    with pytest.raises(ValueError, match=r"/a\.parquet is in it already and has not changed: give files of new"):
        prepare(source, append=True, **options)
    write(source, {"n": [3, 1, 5], "id": [70, 71, 72]})
    with pytest.raises(
        ValueError, match=r"id 70 is in set already and comes again \(row 0 of .*a\.parquet, length 3\)"
    ):
        prepare(source, append=True, **options)
    assert arrays(tmp_path / "set") == before
    write(source, {"n": [5], "id": [72]})
    grown = prepare(source, append=True, **options)
    assert (grown.version, grown.num_sequences, grown.own_tokens) == (2, 3, 9)
    assert arrays(tmp_path / "set" / "versions" / "1") == before


def test_rows_that_an_earlier_release_skipped_without_counting_reasons_stay_uncounted(tmp_path: Path) -> None:
    write(tmp_path / "rows.parquet", {"n": pa.array([3, None, 4])})
    options: dict[str, Any] = {"length_column": "n", "max_seq_len": 8, "on_bad_row": "skip", "progress": False}
    manifest = prepare(tmp_path / "rows.parquet", output=tmp_path / "set", **options)
    assert manifest.inputs is not None
    skipped = replace(manifest.inputs.skipped, by_reason=None)
    earlier = replace(manifest, inputs=replace(manifest.inputs, skipped=skipped))
    (tmp_path / "set" / "manifest.json").write_bytes(earlier.render())
    write(tmp_path / "more.parquet", {"n": pa.array([2, 0])})
    grown = prepare(tmp_path / "more.parquet", output=tmp_path / "set", append=True, **options)
    assert grown.inputs is not None
    assert (grown.inputs.skipped.rows, grown.inputs.skipped.by_reason) == (2, None)
    open_prepared(tmp_path / "set")
