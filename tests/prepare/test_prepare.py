"""`prepare` against a plain oracle, and its inputs, layouts and workers."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import seqpack.prepare
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.flat_words import prepare

from packhorse.dataset import open_prepared
from packhorse.epoch import PlanIndex
from packhorse.formats import MegatronWriter
from packhorse.jobs import InlineEngine
from packhorse.packing import pack_histogram
from packhorse.prepare import job, load_prepared
from packhorse.wire import ids_sum

FILES = ("counts.json", "manifest.json", "pools.npy", "templates.json")


def oracle(lengths: list[int], ids: list[int], limit: int, policy: str) -> dict[int, list[int]]:
    """Length → sorted ids, as the prepared folder should have them."""
    pools: dict[int, list[int]] = {}
    for length, identity in zip(lengths, ids, strict=True):
        if length > limit and policy == "drop":
            continue
        pools.setdefault(min(length, limit), []).append(identity)
    return {length: sorted(members) for length, members in pools.items()}


def write(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


@contextmanager
def inline_engine(workers: int, kind: str, *, ray_address: str | None) -> Iterator[InlineEngine]:
    """Cuts the work as for so many processes, without starting them."""
    engine = InlineEngine()
    engine.workers = workers
    yield engine


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Any]:
    rows = draw(st.integers(1, 60))
    low, high = draw(st.sampled_from([(0, 70), (0, 2**32 - 1), (0, 2**32), (-100, 100), (-(2**63), 2**63 - 1)]))
    ids = draw(st.lists(st.integers(low, high), min_size=rows, max_size=rows, unique=True))
    return {
        "ids": ids if draw(st.booleans()) else None,
        "lengths": draw(st.lists(st.integers(1, 24), min_size=rows, max_size=rows)),
        "length_type": draw(st.sampled_from(["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])),
        "row_group_size": draw(st.integers(1, 20)),
        "cuts": sorted(draw(st.lists(st.integers(0, rows), max_size=3))),
        "limit": draw(st.integers(12, 30)),
        "policy": draw(st.sampled_from(["drop", "truncate"])),
        "workers": draw(st.integers(1, 4)),
        "per_bin": draw(st.none() | st.integers(1, 4)),
    }


@settings(max_examples=60)
@given(tables())
def test_prepare_matches_the_oracle(table: dict[str, Any]) -> None:
    lengths, limit, policy = table["lengths"], table["limit"], table["policy"]
    ids = table["ids"] or list(range(len(lengths)))
    expected = oracle(lengths, ids, limit, policy)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in" / "deeper").mkdir(parents=True)
        edges = [0, *table["cuts"], len(lengths)]
        for part, (begin, end) in enumerate(pairwise(edges)):
            columns: dict[str, Any] = {"n": pa.array(lengths[begin:end], table["length_type"])}
            if table["ids"]:
                columns["id"] = pa.array(ids[begin:end], "int64")
            # "b…" sorts before "deeper/…", which sorts before "e…".
            where = ["b0.parquet", "b1.parquet", "deeper/a.parquet", "e.parquet"][part]
            write(folder / "in" / where, columns, row_group_size=table["row_group_size"])
        arguments: dict[str, Any] = {
            "length_column": "n",
            "id_column": "id" if table["ids"] else None,
            "max_seq_len": limit,
            "output": folder / "out",
            "over_length": policy,
            "max_sequences_per_bin": table["per_bin"],
            "workers": table["workers"],
        }
        if not expected:
            with pytest.raises(ValueError, match="dropped"):
                prepare(folder / "in", **arguments)
            return
        with mock.patch.object(job, "open_engine", inline_engine):
            manifest = prepare(folder / "in", **arguments)
        content, counts, templates, pools = load_prepared(folder / "out")

        assert {length: pool.tolist() for length, pool in pools.items()} == expected
        assert counts == {length: len(members) for length, members in expected.items()}
        plan = pack_histogram(counts, limit, max_sequences_per_bin=table["per_bin"])
        assert templates == plan.templates
        kept = sorted(identity for members in expected.values() for identity in members)
        fits = kept[0] >= 0 and kept[-1] < 2**32
        assert manifest.id_dtype == ("uint32" if fits else "int64")
        assert {str(pool.dtype) for pool in pools.values()} == {manifest.id_dtype}
        over = [length for length in lengths if length > limit]
        lost = sum(over) if policy == "drop" else sum(over) - limit * len(over)
        assert (manifest.over_length.sequences, manifest.over_length.tokens) == (len(over), lost)
        assert (manifest.ids_sum_a, manifest.ids_sum_b) == ids_sum(np.array(kept, dtype=np.int64))
        assert manifest.num_sequences == len(kept)
        assert manifest.source == "in"
        assert (content["max_seq_len"], content["packer"], content["digest"]) == (
            limit,
            plan.algorithm,
            manifest.digest,
        )


def test_the_folder_is_the_same_for_any_workers_files_and_row_groups(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    lengths, ids = rng.integers(1, 200, 5000), rng.permutation(9000)[:5000]
    columns = {"n": lengths.astype(np.int32), "id": ids}
    write(tmp_path / "x.parquet", columns, row_group_size=300)
    common: dict[str, Any] = {"length_column": "n", "max_seq_len": 256}
    for id_column in (None, "id"):
        prepare(tmp_path / "x.parquet", output=tmp_path / f"1{id_column}", id_column=id_column, workers=1, **common)
    prepare(tmp_path / "x.parquet", output=tmp_path / "2id", id_column="id", workers=2, **common)
    for name in FILES:
        assert (tmp_path / "1id" / name).read_bytes() == (tmp_path / "2id" / name).read_bytes(), name

    split = tmp_path / "split"
    split.mkdir()
    for part in range(5):
        some = {name: column[part * 1000 : (part + 1) * 1000] for name, column in columns.items()}
        write(split / f"{part}.parquet", some, row_group_size=77)
    prepare(split, output=tmp_path / "rows", **common)
    assert (tmp_path / "rows/pools.npy").read_bytes() == (tmp_path / "1None/pools.npy").read_bytes()
    assert open_prepared(tmp_path / "rows").manifest.digest == open_prepared(tmp_path / "1None").manifest.digest


def test_glob_takes_matching_files_in_sorted_order(tmp_path: Path) -> None:
    for name, length in (("b.parquet", 2), ("a.parquet", 1), ("c.other", 3)):
        write(tmp_path / name, {"n": [length]})
    prepare(str(tmp_path / "*.parquet"), length_column="n", max_seq_len=8, output=tmp_path / "out")
    pools = load_prepared(tmp_path / "out")[3]
    assert {length: pool.tolist() for length, pool in pools.items()} == {1: [0], 2: [1]}


def test_a_column_name_that_prefixes_another_reads_its_own_values(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {"n.len": [7, 7], "n": [1, 2], "other": ["a", "b"]})
    prepare(path, length_column="n", max_seq_len=8, output=tmp_path / "out")
    assert load_prepared(tmp_path / "out")[1] == {1: 1, 2: 1}


def test_megatron_index_gives_lengths_and_rows_as_ids(tmp_path: Path) -> None:
    lengths = [3, 1, 3, 5, 1]
    with MegatronWriter(tmp_path / "x", vocab_size=100) as writer:
        for length in lengths:
            writer.append(np.arange(length, dtype=np.uint16))
    manifest = prepare(tmp_path / "x.idx", max_seq_len=6, output=tmp_path / "out")
    pools = load_prepared(tmp_path / "out")[3]
    assert {length: pool.tolist() for length, pool in pools.items()} == oracle(lengths, list(range(5)), 6, "drop")
    assert manifest.source == "x.idx"


def test_many_spans_of_an_index_keep_their_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packhorse.prepare.input._base.RANGE_ROWS", 7)
    monkeypatch.setattr("packhorse.prepare.counting._TASK_ROWS", 10)
    lengths = np.random.default_rng(1).integers(1, 9, 100).tolist()
    with MegatronWriter(tmp_path / "x", vocab_size=100) as writer:
        for length in lengths:
            writer.append(np.arange(length, dtype=np.uint16))
    prepare(tmp_path / "x.idx", max_seq_len=8, output=tmp_path / "out")
    pools = load_prepared(tmp_path / "out")[3]
    assert {length: pool.tolist() for length, pool in pools.items()} == oracle(lengths, list(range(100)), 8, "drop")


def test_seqpack_reads_what_format_seqpack_writes(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    path = write(tmp_path / "x.parquet", {"n": rng.integers(1, 60, 400), "id": rng.permutation(400)})
    common: dict[str, Any] = {"length_column": "n", "id_column": "id", "max_seq_len": 64}
    prepare(path, output=tmp_path / "ours", **common)
    prepare(path, output=tmp_path / "theirs", format="seqpack", **common)
    manifest, counts, templates, pools = seqpack.prepare.load_prepared(tmp_path / "theirs")
    ours, our_counts, our_templates, our_pools = load_prepared(tmp_path / "ours")
    assert (counts, templates) == (our_counts, our_templates)
    assert {length: pool.tolist() for length, pool in pools.items()} == {
        length: pool.tolist() for length, pool in our_pools.items()
    }
    assert {pool.dtype for pool in pools.values()} == {np.dtype(np.int64)}
    assert manifest == {key: ours[key] for key in manifest}
    assert sorted(p.name for p in (tmp_path / "theirs").iterdir()) == [
        "counts.json",
        "manifest.json",
        "pools",
        "templates.json",
    ]
    PlanIndex.build(templates, counts, 64)


def test_overwrite_replaces_the_whole_folder(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {"n": [1, 2, 3]})
    out = tmp_path / "out"
    prepare(path, length_column="n", max_seq_len=2, over_length="split", output=out)
    assert (out / "starts.npy").exists()
    prepare(path, length_column="n", max_seq_len=8, output=out, overwrite=True)
    assert sorted(p.name for p in out.iterdir()) == sorted(FILES)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "x.parquet"]
