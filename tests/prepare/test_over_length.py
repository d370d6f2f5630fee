"""Over-length policies, `align` and `extra_tokens` at prepare, against an oracle that cuts sequences one by one."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.flat_words import prepare

from packhorse.cli.prepare import command
from packhorse.dataset import PreparedDatasetError, open_prepared
from packhorse.jobs import InlineEngine
from packhorse.packing import pack_histogram
from packhorse.prepare import _merging, _sort, _spills, counting, job
from packhorse.prepare._kernels import sort_pairs
from packhorse.prepare.duplicates import cut_chunks
from packhorse.wire import ids_sum

Entry = tuple[int, int, int, int]
"""(planned length, id, start, own tokens)"""


def room(own: int, align: int, extra: int) -> int:
    size = max(own + extra, 1)
    while size % align:
        size += 1
    return size


def cut(identity: int, length: int, options: dict[str, Any]) -> list[Entry]:
    """What is planned of one sequence, token by token."""
    align, extra, limit = options["align"], options["extra_tokens"], options["max_seq_len"]
    fits = max(own for own in range(limit + 2) if room(own, align, extra) <= limit)
    tokens = list(range(length))
    if length <= fits:
        parts = [tokens]
    elif options["over_length"] == "drop":
        parts = []
    elif options["over_length"] == "truncate":
        parts = [tokens[:fits] if options["keep"] == "head" else tokens[-fits:]]
    else:
        parts = [tokens[begin : begin + fits] for begin in range(0, length, fits)]
    return [(room(len(part), align, extra), identity, part[0], len(part)) for part in parts]


@contextmanager
def inline_engine(workers: int, kind: str, *, ray_address: str | None) -> Iterator[InlineEngine]:
    """Cuts the work as for so many processes, without starting them."""
    engine = InlineEngine()
    engine.workers = workers
    yield engine


def write(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    rows = draw(st.integers(1, 50))
    low, high = draw(st.sampled_from([(0, 2**32 - 1), (-(2**63), 2**63 - 1)]))
    policy, keep = draw(
        st.sampled_from([("drop", "head"), ("truncate", "head"), ("truncate", "tail"), ("split", "head")])
    )
    limit = draw(st.integers(4, 30))
    align = draw(st.sampled_from([1, 1, 2, 3, 4]))
    return {
        "ids": draw(st.none() | st.lists(st.integers(low, high), min_size=rows, max_size=rows, unique=True)),
        "lengths": draw(st.lists(st.integers(1, 90), min_size=rows, max_size=rows)),
        "row_group_size": draw(st.integers(1, 20)),
        "options": {
            "max_seq_len": limit,
            "over_length": policy,
            "keep": keep,
            "align": align,
            "extra_tokens": draw(st.integers(-1, limit // align * align - 1)),
        },
        "workers": draw(st.integers(1, 3)),
        "window": draw(st.sampled_from([2, 5, 1 << 20])),
    }


@settings(max_examples=40)
@given(cases())
def test_every_entry_and_file_is_the_oracles(case: dict[str, Any]) -> None:
    lengths, options = case["lengths"], case["options"]
    ids = case["ids"] or list(range(len(lengths)))
    expected = sorted(e for identity, length in zip(ids, lengths, strict=True) for e in cut(identity, length, options))
    fits = options["max_seq_len"] // options["align"] * options["align"] - options["extra_tokens"]
    over = sorted((identity, length) for identity, length in zip(ids, lengths, strict=True) if length > fits)
    with tempfile.TemporaryDirectory() as name:
        columns: dict[str, Any] = {"n": lengths, "id": pa.array(ids, "int64")}
        path = write(Path(name) / "x.parquet", columns, row_group_size=case["row_group_size"])
        arguments = {
            "length_column": "n",
            "id_column": "id" if case["ids"] else None,
            "output": Path(name) / "out",
            "workers": case["workers"],
            **options,
        }
        if not expected:
            with pytest.raises(ValueError, match="dropped"):
                prepare(path, **arguments)
            return

        def windows(*place: Any, **keywords: Any) -> Any:
            return cut_chunks(*place, chunk_ids=case["window"], **keywords)

        with (
            mock.patch.object(job, "open_engine", inline_engine),
            mock.patch.object(counting, "_TASK_ROWS", 7),
            mock.patch.object(_merging, "PAGE_BYTES", 128),
            mock.patch.object(_sort, "cut_chunks", windows),
        ):
            prepare(path, **arguments)
        dataset = open_prepared(Path(name) / "out")
        manifest = dataset.manifest

        counts = {planned: sum(e[0] == planned for e in expected) for planned in {e[0] for e in expected}}
        assert dataset.counts == counts
        assert dataset.templates == pack_histogram(counts, options["max_seq_len"]).templates
        planned = np.repeat(dataset.plan.lengths, dataset.plan.counts).tolist()
        starts = np.zeros(len(planned), np.int64) if dataset.first_tokens is None else dataset.first_tokens
        found = list(zip(planned, dataset.pool.tolist(), starts.tolist(), strict=True))
        assert found == [entry[:3] for entry in expected]
        moved = any(start for _, _, start, _ in expected)
        assert (dataset.first_tokens is not None) == (dataset.path / "starts.npy").exists() == moved
        assert manifest.start_dtype == ("uint32" if moved else None)

        assert [tuple(row) for row in dataset.over_length().tolist()] == over
        assert (dataset.path / "over_length.npy").exists() == bool(over)
        assert manifest.own_tokens == sum(own for *_, own in expected)
        ledger, long = manifest.over_length, {identity for identity, _ in over}
        kept = sum(own for _, identity, _, own in expected if identity in long)
        assert (ledger.sequences, ledger.source_tokens) == (len(over), sum(length for _, length in over))
        assert ledger.tokens == ledger.source_tokens - kept
        pieces = sum(identity in long for _, identity, _, _ in expected)
        assert ledger.pieces == (pieces if options["over_length"] == "split" else 0)
        pairs = np.array([(identity, start) for _, identity, start, _ in reversed(expected)], np.int64)
        assert (manifest.ids_sum_a, manifest.ids_sum_b) == ids_sum(pairs[:, 0], pairs[:, 1])
        assert manifest.num_sequences == len(expected)


@pytest.mark.long
def test_the_folder_is_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    ids = rng.permutation(9000)[:3000] + 2**33
    write(tmp_path / "x.parquet", {"n": rng.integers(1, 900, 3000), "id": ids}, row_group_size=200)
    for policy, keep in (("split", "head"), ("truncate", "tail")):
        folders = [tmp_path / f"{policy}{workers}" for workers in (1, 2)]
        for workers, folder in enumerate(folders, start=1):
            prepare(
                tmp_path / "x.parquet",
                length_column="n",
                id_column="id",
                max_seq_len=100,
                over_length=policy,  # type: ignore[arg-type]
                keep=keep,  # type: ignore[arg-type]
                align=8,
                output=folder,
                workers=workers,
            )
        names = sorted(path.name for path in folders[0].iterdir())
        assert names == sorted(path.name for path in folders[1].iterdir())
        assert {"starts.npy", "over_length.npy"} <= set(names)
        for name in names:
            assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 3)), max_size=40))
@settings(max_examples=200)
def test_pairs_are_sorted_in_place(pairs: list[tuple[int, int]]) -> None:
    rows = np.array(pairs, np.int64).reshape(-1, 2)
    sort_pairs(rows[:, 0], rows[:, 1])
    assert rows.tolist() == sorted(map(list, pairs))


def test_pieces_are_no_duplicates_but_a_repeated_id_is(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {"n": [25, 3, 31], "id": [4, 9, 4]})
    with pytest.raises(ValueError, match=r"id 4 occurs 2 times.*row 0.*length 25; row 2.*length 31"):
        prepare(path, length_column="n", id_column="id", max_seq_len=10, over_length="split", output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_start_beyond_uint32_is_kept_exactly(tmp_path: Path) -> None:
    length = 2**34 + 5
    path = write(tmp_path / "x.parquet", {"n": [3, length]})
    options: dict[str, Any] = {"length_column": "n", "max_seq_len": 2**20}
    prepare(path, over_length="split", output=tmp_path / "split", **options)
    dataset = open_prepared(tmp_path / "split")
    assert dataset.first_tokens is not None
    assert dataset.first_tokens.dtype == np.int64
    assert sorted(dataset.first_tokens.tolist()) == [0, *range(0, length, 2**20)]
    prepare(path, over_length="truncate", keep="tail", output=tmp_path / "tail", **options)
    assert open_prepared(tmp_path / "tail").first_tokens.tolist() == [0, length - 2**20]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"over_length": "drop", "keep": "tail"}, "keep='tail' is for over_length='truncate'"),
        ({"over_length": "truncate", "keep": "left"}, "keep must be one of head, tail"),
        ({"align": 0}, "align"),
        ({"align": 1.5}, "align"),
        ({"extra_tokens": -2}, "extra_tokens"),
        ({"align": 11}, "no sequence fits max_seq_len 10 with align 11"),
        ({"align": 4, "extra_tokens": 8}, "no sequence fits max_seq_len 10 with align 4 and extra_tokens 8"),
        (
            {"align": 4},
            r"has 9 tokens, over the 8 that fit max_seq_len 10 with align 4.*over_length='split'.*drop or truncate",
        ),
        ({"over_length": "split", "format": "seqpack"}, "seqpack's layout"),
        ({"over_length": "truncate", "keep": "tail", "format": "seqpack"}, "seqpack's layout"),
    ],
)
def test_options_are_refused_by_name(tmp_path: Path, arguments: dict[str, Any], said: str) -> None:
    path = write(tmp_path / "x.parquet", {"n": [1, 9]})
    with pytest.raises(ValueError, match=said):
        prepare(path, length_column="n", max_seq_len=10, output=tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_an_absurd_length_is_not_split(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {"n": [1, 2**40 + 1, 7]})
    with pytest.raises(ValueError, match=r"row 1 has 1099511627777 tokens"):
        prepare(path, length_column="n", max_seq_len=10, over_length="split", output=tmp_path / "out")


def test_without_long_sequences_nothing_is_added(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {"n": [1, 9, 4]})
    for policy, keep in (("split", "head"), ("truncate", "tail"), ("error", "head")):
        folder = tmp_path / policy
        prepare(path, length_column="n", max_seq_len=10, over_length=policy, keep=keep, output=folder)  # type: ignore[arg-type]
        assert sorted(p.name for p in folder.iterdir()) == [
            "counts.json",
            "manifest.json",
            "pools.npy",
            "templates.json",
        ]
        assert len(open_prepared(folder).over_length()) == 0


@pytest.fixture(scope="module")
def split_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("split")
    path = write(folder / "x.parquet", {"n": np.arange(1, 60)})
    prepare(path, length_column="n", max_seq_len=16, over_length="split", output=folder / "set")
    return folder / "set"


@pytest.mark.parametrize("name", ["starts.npy", "over_length.npy"])
def test_damaged_files_are_named(name: str, split_folder: Path, tmp_path: Path) -> None:
    content = (split_folder / name).read_bytes()
    bits = [bytearray(content) for _ in range(3)]
    for flipped, at in zip(bits, (0, 9, len(content) - 3), strict=True):
        flipped[at] ^= 4
    for number, damaged in enumerate([None, b"", content[:-1], content[:64], content + b"\0", *map(bytes, bits)]):
        folder = tmp_path / str(number)
        shutil.copytree(split_folder, folder)
        (folder / name).unlink()
        if damaged is not None:
            (folder / name).write_bytes(damaged)
        with pytest.raises(PreparedDatasetError, match=name):
            open_prepared(folder)
        with pytest.raises(PreparedDatasetError, match=name):
            open_prepared(folder, check_pool=False).check_pool()


def test_starts_are_in_the_digest(split_folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {"n": np.arange(1, 60)})
    folder = tmp_path / "set"
    prepare(path, length_column="n", max_seq_len=16, over_length="split", output=folder)
    assert open_prepared(folder).manifest.digest == open_prepared(split_folder).manifest.digest
    with mock.patch("packhorse.prepare._spills.fill_pool", _with_shifted_first_tokens(_spills.fill_pool)):
        prepare(path, length_column="n", max_seq_len=16, over_length="split", output=folder, overwrite=True)
    other, same = open_prepared(folder).manifest, open_prepared(split_folder).manifest
    assert [a == b for a, b in zip(other.digest.split("-"), same.digest.split("-"), strict=True)] == [True] * 3 + [
        False
    ]
    assert (other.ids_sum_a, other.ids_sum_b) != (same.ids_sum_a, same.ids_sum_b)


def _with_shifted_first_tokens(fill: Any) -> Any:
    def shifted(*arguments: Any) -> Any:
        result = fill(*arguments)
        arguments[-1][-1] += 1
        return result

    return shifted


def test_the_command_has_the_flags_and_prints_the_ledger(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {"n": [5, 40, 17]})
    flags = ["--input", str(path), "--length-column", "n", "--max-seq-len", "16", "--align", "4", "--extra-tokens", "1"]
    result = CliRunner().invoke(command, [*flags, "--over-length", "split", "--output", str(tmp_path / "a")])
    assert result.exit_code == 0, result.output
    assert "over length: 2 sequences split into 5 pieces; no token is lost" in result.output
    options = open_prepared(tmp_path / "a").manifest.options
    assert (options.align, options.extra_tokens, options.rooms.longest) == (4, 1, 15)
    tail = ["--over-length", "truncate", "--keep", "tail", "--output", str(tmp_path / "b")]
    result = CliRunner().invoke(command, [*flags, *tail])
    assert result.exit_code == 0, result.output
    assert "2 sequences truncated; 27 tokens are lost" in result.output
    assert open_prepared(tmp_path / "b").first_tokens.tolist() == [0, 25, 2]  # type: ignore[union-attr]
