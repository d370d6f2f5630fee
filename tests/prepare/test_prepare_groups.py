"""Groups through `prepare`: what ends up in the folder, for every kind of input, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tests.flat_words import prepare
from tests.prepare.grouped_rows import IDS, LENGTHS, MEMBERS, PROMPTS, TABLE, by_group, write_index

from packhorse.cli import main
from packhorse.dataset import PlanOptions, PreparedDatasetError, open_prepared
from packhorse.formats import MegatronWriter
from packhorse.packing import lower_bound
from packhorse.prepare import _sort
from packhorse.prepare.options import refuse_with_groups


def test_every_kind_of_input_gives_the_same_folder(tmp_path):
    pq.write_table(TABLE, tmp_path / "rows.parquet", row_group_size=2)  # groups lie across row groups
    tokens = pa.table({"n": [list(range(n)) for n in LENGTHS], "prompt": PROMPTS, "id": IDS})
    pq.write_table(tokens, tmp_path / "tokens.parquet", row_group_size=4)
    feather.write_feather(TABLE, tmp_path / "rows.arrow", chunksize=4, compression="uncompressed")
    array = np.array(list(zip(LENGTHS, PROMPTS, IDS, strict=True)), [("n", "i4"), ("prompt", "u2"), ("id", "i8")])
    np.save(tmp_path / "rows.npy", array)
    columns = {"length_column": "n", "id_column": "id", "group_column": "prompt"}
    inputs = [tmp_path / name for name in ("rows.parquet", "tokens.parquet", "rows.arrow", "rows.npy")]
    digests = set()
    for number, given in enumerate([*inputs, TABLE, array]):
        source = {"input": given} if isinstance(given, Path) else {"lengths": given}
        output = tmp_path / str(number)
        digests.add(prepare(**source, **columns, max_seq_len=12, output=output, progress=False).digest)
        assert by_group(output) == MEMBERS
    assert len(digests) == 1


def test_the_manifest_counts_sequences_and_groups(tmp_path):
    manifest = prepare(
        lengths=TABLE,
        length_column="n",
        id_column="id",
        group_column="prompt",
        max_seq_len=24,
        align=4,
        extra_tokens=1,
        output=tmp_path / "set",
        progress=False,
    )
    rooms = [-(-(n + 1) // 4) * 4 for n in LENGTHS]
    of_groups = [sum(r for r, g in zip(rooms, PROMPTS, strict=True) if g == group) for group in MEMBERS]
    assert (manifest.num_sequences, manifest.own_tokens, manifest.total_tokens) == (9, sum(LENGTHS), sum(rooms))
    assert manifest.num_bins >= lower_bound({room: of_groups.count(room) for room in of_groups}, 24)
    groups = manifest.groups
    assert groups is not None
    assert (groups.by, groups.num_groups, groups.most_sequences, groups.ids_ascend) == ("column 'prompt'", 4, 4, False)
    dataset = open_prepared(tmp_path / "set")
    epoch = dataset.epoch(0, seed=3)
    bins = epoch.bins(np.arange(epoch.num_bins))
    assert bins.sizes().max() <= dataset.max_sequences_per_bin == groups.max_sequences_per_bin
    assert dict(zip(bins.ids.tolist(), bins.lengths.tolist(), strict=True)) == dict(zip(IDS, rooms, strict=True))


def test_groups_without_last_tokens_may_have_one_token_more_each(tmp_path):
    options = {"group_size": 2, "max_seq_len": 8, "extra_tokens": -1, "over_length": "drop", "progress": False}
    lengths = np.array([5, 5, 6, 5, 1, 8, 1, 10**9])  # rooms of 4 + 4, 5 + 4, 1 + 7, 1 + far too many
    manifest = prepare(lengths=lengths, output=tmp_path / "set", **options)
    assert (manifest.num_sequences, manifest.num_bins, manifest.total_tokens) == (4, 2, 16)
    assert manifest.groups.num_dropped == 2
    dataset = open_prepared(tmp_path / "set")
    bins = dataset.epoch(0, seed=3).bins(np.arange(2))
    assert dict(zip(bins.ids.tolist(), bins.lengths.tolist(), strict=True)) == {0: 4, 1: 4, 4: 1, 5: 7}


def test_pairs_of_an_index_are_groups_of_two(tmp_path):
    with MegatronWriter(tmp_path / "pairs", vocab_size=9) as writer:
        for length in (3, 4, 5, 6, 1, 2):
            writer.append(np.zeros(length, dtype=np.int64))
    prepare(tmp_path / "pairs.idx", group_size=2, max_seq_len=11, output=tmp_path / "set", progress=False)
    assert by_group(tmp_path / "set") == {0: [0, 1], 1: [2, 3], 2: [4, 5]}
    held = prepare(
        lengths=[3, 4, 5, 6, 1, 2], groups=[0, 0, 1, 1, 2, 2], max_seq_len=11, output=tmp_path / "held", progress=False
    )
    assert held.digest == open_prepared(tmp_path / "set").manifest.digest


def test_workers_and_resume_change_no_byte(tmp_path, monkeypatch):
    random = np.random.default_rng(3)
    sizes = random.integers(1, 4, 1500)
    num = int(sizes.sum())
    rows = pa.table({"n": random.integers(1, 50, num), "g": np.repeat(random.permutation(1500), sizes)})
    pq.write_table(rows, tmp_path / "x.parquet", row_group_size=700)
    arguments = {"length_column": "n", "group_column": "g", "max_seq_len": 256, "progress": False}
    for name, workers in (("one", 1), ("two", 2)):
        prepare(tmp_path / "x.parquet", output=tmp_path / name, **arguments, workers=workers)

    def stop(*_, **__):
        raise RuntimeError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(_sort, "merge_task", stop)
        with pytest.raises(RuntimeError, match="stopped"):
            prepare(tmp_path / "x.parquet", output=tmp_path / "resumed", **arguments)
    with pytest.raises(ValueError, match="group_column was g and is None"):
        prepare(tmp_path / "x.parquet", output=tmp_path / "resumed", resume=True, **arguments | {"group_column": None})
    with monkeypatch.context() as patch:
        patch.setattr(_sort, "count_task", stop)
        patch.setattr(_sort, "write_spill", stop)  # finished: only the tables of groups are written again
        prepare(tmp_path / "x.parquet", output=tmp_path / "resumed", resume=True, **arguments)
    for path in (tmp_path / "one").iterdir():
        for other in ("two", "resumed"):
            assert path.read_bytes() == (tmp_path / other / path.name).read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"over_length": "split"}, "over_length='split' would cut sequences out of their group"),
        ({"over_length": "truncate"}, "over_length='truncate' would cut"),
        ({"max_sequences_per_bin": 4}, "max_sequences_per_bin does not go with groups"),
        ({"format": "seqpack"}, "seqpack's layout cannot say which sequences are a group"),
        ({"on_bad_row": "skip"}, "on_bad_row='skip' would leave a group without"),
        ({"group_size": 3}, "group_column and group_size both say"),
        ({"group_column": None, "group_size": 2}, "9 rows are not a multiple of group_size 2: 1 are left over"),
        ({"group_column": None, "group_size": 0}, "group_size must be an integer of at least 1"),
        (
            {"group_column": "n"},
            "the rows of group 1 do not follow each other: it is in row 4 and again in row 8; sort the input by n",
        ),
        ({"group_column": "none"}, "none"),
        ({"group_column": "name"}, "column 'name' holds string, but groups are integers: number them"),
        ({"group_column": None, "groups": [1, 2]}, "groups has 2 entries for 9 rows"),
        ({"group_column": None, "groups": ["a"]}, "groups must be one integer for each row"),
        ({"group_column": "below"}, "row 8 is of group -1; groups are integers from 0 on"),
        ({"group_column": "missing"}, "row 2, column 'missing' is null"),
        ({"id_column": "twice"}, "id 5 occurs 2 times"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, options, message):
    lengths = [5, 3, 9, 2, 1, 1, 7, 8, 1]
    table = TABLE.set_column(0, "n", [lengths])
    table = table.append_column("name", [["a"] * 9]).append_column("below", [[0] * 8 + [-1]])
    table = table.append_column("missing", [pa.array([1, 1, None, 2, 2, 2, 2, 3, 3])])
    table = table.append_column("twice", [[5, *range(10, 17), 5]])
    arguments = {"length_column": "n", "id_column": "id", "group_column": "prompt", "max_seq_len": 32} | options
    with pytest.raises(ValueError, match=message):
        prepare(lengths=table, output=tmp_path / "set", progress=False, **arguments)
    assert not (tmp_path / "set").exists()


def write_mds(folder, **columns):
    """Writes one shard whose columns are integers."""
    folder.mkdir()
    rows = np.stack([np.array(values, dtype="<i8") for values in columns.values()], axis=1)
    begins = 4 + 4 * (len(rows) + 1) + rows[0].nbytes * np.arange(len(rows) + 1, dtype="<u4")
    data = np.array([len(rows)], "<u4").tobytes() + begins.astype("<u4").tobytes() + rows.tobytes()
    (folder / "shard.00000.mds").write_bytes(data)
    names, kinds = sorted(columns), ["int"] * len(columns)
    assert list(columns) == names
    raw = {"basename": "shard.00000.mds", "bytes": len(data), "hashes": {}}
    shard = {"column_encodings": kinds, "column_names": names, "column_sizes": [8] * len(names), "compression": None}
    shard |= {"format": "mds", "hashes": [], "raw_data": raw, "samples": len(rows), "size_limit": None}
    index = {"shards": [shard | {"version": 2, "zip_data": None}], "version": 2}
    (folder / "index.json").write_text(json.dumps(index))
    return folder


def test_token_files_have_groups_by_a_column_or_a_file(tmp_path):
    arguments = {"max_seq_len": 12, "progress": False}
    write_mds(tmp_path / "shards", n=LENGTHS, prompt=PROMPTS)
    prepare(tmp_path / "shards", length_column="n", group_column="prompt", output=tmp_path / "mds", **arguments)
    index = write_index(tmp_path / "rows", LENGTHS)
    np.save(tmp_path / "groups.npy", np.array(PROMPTS, dtype=np.uint16))
    prepare(index, groups=tmp_path / "groups.npy", output=tmp_path / "megatron", **arguments)
    table = TABLE.drop_columns("id")
    prepare(lengths=table, length_column="n", group_column="prompt", output=tmp_path / "held", **arguments)
    held = open_prepared(tmp_path / "held").manifest
    for name, by in (("mds", "column 'prompt'"), ("megatron", "groups")):
        manifest = open_prepared(tmp_path / name).manifest
        assert manifest.groups is not None
        assert (manifest.groups.by, manifest.digest) == (by, held.digest)
    described = tmp_path / "shards" / "index.json"
    described.write_text(described.read_text().replace('["int", "int"]', '["int", "str"]'))
    with pytest.raises(ValueError, match="column 'prompt' is encoded as 'str', but groups are integers"):
        prepare(tmp_path / "shards", length_column="n", group_column="prompt", output=tmp_path / "set", **arguments)


def test_a_file_of_groups_is_an_input(tmp_path):
    index, groups = write_index(tmp_path / "rows", [3, 4, 5]), tmp_path / "groups.npy"
    arguments = {"input": index, "groups": groups, "max_seq_len": 9, "progress": False}
    np.save(groups, np.array([1, 1]))
    with pytest.raises(ValueError, match="groups has 2 entries for 3 rows"):
        prepare(output=tmp_path / "set", **arguments)
    np.save(groups, np.array([1.0, 1.0, 2.0]))
    with pytest.raises(ValueError, match=r"groups\.npy must be one integer for each row, got float64"):
        prepare(output=tmp_path / "set", **arguments)
    np.save(groups, np.array([1, 1, 2]))
    with pytest.raises(ValueError, match="groups in memory need lengths in memory"):
        prepare(output=tmp_path / "set", **arguments | {"groups": [1, 1, 2]})
    result = CliRunner().invoke(
        main,
        [
            *("prepare", "--input", str(index), "--groups", str(groups)),
            *("--max-seq-len", "9"),
            "--output",
            str(tmp_path / "set"),
        ],
    )
    assert result.exit_code == 0, result.output
    assert by_group(tmp_path / "set") == {1: [0, 1], 2: [2]}


def test_resume_notices_another_file_of_groups(tmp_path, monkeypatch):
    index, groups = write_index(tmp_path / "rows", [3, 4, 5, 2]), tmp_path / "groups.npy"
    arguments = {"input": index, "groups": groups, "max_seq_len": 9, "output": tmp_path / "set", "progress": False}
    np.save(groups, np.array([1, 1, 2, 2]))

    def stop(*_, **__):
        raise RuntimeError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(_sort, "merge_task", stop)
        with pytest.raises(RuntimeError, match="stopped"):
            prepare(**arguments)
    np.save(groups, np.array([1, 1, 2, 3]))
    with pytest.raises(ValueError, match=r"groups\.npy changed since"):
        prepare(resume=True, **arguments)


def test_the_command_line_can_print_the_flag_that_groups_refuse():
    with pytest.raises(ValueError, match="max_sequences_per_bin does not go with groups") as caught:
        refuse_with_groups(PlanOptions(max_seq_len=8, max_sequences_per_bin=3), seqpack=False, skips=False)
    assert caught.value.args[0].spelled(lambda each: f"<{each.name}>").startswith("<max_sequences_per_bin> ")


@pytest.mark.parametrize("name", ["groups.npy", "members.npy", "member_order.npy", "dropped_groups.npy", "pools.npy"])
def test_an_altered_table_is_refused(tmp_path, name):
    output = tmp_path / "set"
    columns = {"length_column": "n", "id_column": "id", "group_column": "prompt", "over_length": "drop"}
    prepare(lengths=TABLE, **columns, max_seq_len=10, output=output, progress=False)
    data = bytearray((output / name).read_bytes())
    data[-1] ^= 1
    (output / name).write_bytes(data)
    with pytest.raises(PreparedDatasetError, match=name):
        open_prepared(output)


@pytest.mark.shelf
def test_the_command_line_prepares_inspects_and_verifies(tmp_path):
    tokens = pa.table({"tokens": [list(range(n)) for n in LENGTHS], "prompt": PROMPTS, "id": IDS})
    pq.write_table(tokens, tmp_path / "x.parquet")
    folder = str(tmp_path / "set")

    def run(*arguments):
        result = CliRunner().invoke(main, list(map(str, arguments)))
        return result.exit_code, result.output

    path = tmp_path / "x.parquet"
    code, said = run(
        *("prepare", "--input", path, "--id-column", "id", "--group-column", "prompt"),
        *("--max-seq-len", 10, "--over-length", "drop", "--output", folder),
    )
    line = "groups: 3 by column 'prompt', 1 left out, of 5 sequences; at most 2 in a group and 2 in a bin"
    assert code == 0, said
    assert line in said
    assert "sequences:   5 " in said
    code, said = run("inspect", folder, "--world-size", 2, "--templates", 0)
    assert line in said
    assert "groups dropped" in said
    code, said = run("verify", folder, "--tokens", path, "--id-column", "id")
    assert (code, "9 of 9 lengths compared" in said) == (0, True)
    lengths = [*LENGTHS[:-1], 3]
    pq.write_table(tokens.set_column(0, "tokens", [[list(range(n)) for n in lengths]]), path)
    code, said = run("verify", folder, "--tokens", path, "--id-column", "id")
    assert code != 0
    assert "sequence 0: the plan says 2 tokens, and 3 are there" in said
