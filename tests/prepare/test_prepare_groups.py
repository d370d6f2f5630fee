"""Groups through `prepare`: what ends up in the folder, for every kind of input, and what is refused."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from packhorse.cli import main
from packhorse.dataset import PreparedDatasetError, open_prepared
from packhorse.formats import MegatronWriter
from packhorse.packing import lower_bound
from packhorse.prepare import _sort, dry_run, prepare

LENGTHS = [5, 3, 9, 1, 1, 1, 7, 8, 2]
PROMPTS = [40, 40, 7, 7, 7, 7, 12, 50, 50]
IDS = [900, 3, 17, 18, 19, 2, 77, 1, 0]
MEMBERS = {40: [900, 3], 7: [17, 18, 19, 2], 12: [77], 50: [1, 0]}


@pytest.fixture
def table():
    return pa.table({"n": LENGTHS, "prompt": PROMPTS, "id": IDS})


def by_group(folder):
    """Group → its sequences' ids, in order, as an epoch's bins have them."""
    epoch = open_prepared(folder).epoch(0, seed=1)
    bins = epoch.bins(np.arange(epoch.num_bins))
    found = {}
    for group, sequence in zip(bins.group_ids.tolist(), bins.ids.tolist(), strict=True):
        found.setdefault(group, []).append(sequence)
    return found


def test_every_kind_of_input_gives_the_same_folder(tmp_path, table):
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=2)  # groups lie across row groups
    tokens = pa.table({"n": [list(range(n)) for n in LENGTHS], "prompt": PROMPTS, "id": IDS})
    pq.write_table(tokens, tmp_path / "tokens.parquet", row_group_size=4)
    feather.write_feather(table, tmp_path / "rows.arrow", chunksize=4, compression="uncompressed")
    array = np.array(list(zip(LENGTHS, PROMPTS, IDS, strict=True)), [("n", "i4"), ("prompt", "u2"), ("id", "i8")])
    np.save(tmp_path / "rows.npy", array)
    columns = {"length_column": "n", "id_column": "id", "group_column": "prompt"}
    inputs = [tmp_path / name for name in ("rows.parquet", "tokens.parquet", "rows.arrow", "rows.npy")]
    digests = set()
    for number, given in enumerate([*inputs, table, array]):
        source = {"input": given} if isinstance(given, Path) else {"lengths": given}
        output = tmp_path / str(number)
        digests.add(prepare(**source, **columns, max_seq_len=12, output=output, progress=False).digest)
        assert by_group(output) == MEMBERS
    assert len(digests) == 1


def test_the_manifest_counts_sequences_and_groups(tmp_path, table):
    manifest = prepare(
        lengths=table,
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
    assert (manifest.n_sequences, manifest.own_tokens, manifest.total_tokens) == (9, sum(LENGTHS), sum(rooms))
    assert manifest.n_bins >= lower_bound({room: of_groups.count(room) for room in of_groups}, 24)
    groups = manifest.groups
    assert groups is not None
    assert (groups.by, groups.n_groups, groups.most_sequences, groups.ids_ascend) == ("column 'prompt'", 4, 4, False)
    dataset = open_prepared(tmp_path / "set")
    epoch = dataset.epoch(0, seed=3)
    bins = epoch.bins(np.arange(epoch.num_bins))
    assert bins.sizes().max() <= dataset.max_sequences_per_bin == groups.max_sequences_per_bin
    assert dict(zip(bins.ids.tolist(), bins.lengths.tolist(), strict=True)) == dict(zip(IDS, rooms, strict=True))


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


def test_groups_that_are_too_long_are_left_out_whole(tmp_path, table):
    arguments = {"length_column": "n", "id_column": "id", "group_column": "prompt", "progress": False}
    with pytest.raises(ValueError, match=r"group 7 \(rows 2 to 5, 4 sequences\) has 12 tokens together, over max_seq"):
        prepare(lengths=table, max_seq_len=11, output=tmp_path / "set", **arguments)
    assert not (tmp_path / "set").exists()
    arguments |= {"lengths": table, "max_seq_len": 9, "over_length": "drop", "output": tmp_path / "set"}
    tried = dry_run(**arguments)
    manifest = prepare(**arguments)
    assert by_group(tmp_path / "set") == {40: [900, 3], 12: [77]}
    ledger = manifest.over_length
    assert tried.over_length == ledger
    assert (ledger.sequences, ledger.tokens, ledger.source_tokens) == (6, 22, 22)
    assert manifest.groups is not None
    assert manifest.groups.n_dropped == 2
    assert open_prepared(tmp_path / "set").over_length().tolist() == [[0, 2], [1, 8], [2, 1], [17, 9], [18, 1], [19, 1]]
    assert tried.stats.n_sequences == manifest.n_sequences == 3


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
    with pytest.raises(ValueError, match="--group-column was g and is None"):
        prepare(tmp_path / "x.parquet", output=tmp_path / "resumed", resume=True, **arguments | {"group_column": None})
    with monkeypatch.context() as patch:
        patch.setattr(_sort, "count_task", stop)
        patch.setattr(_sort, "fill_run", stop)  # finished: only the tables of groups are written again
        prepare(tmp_path / "x.parquet", output=tmp_path / "resumed", resume=True, **arguments)
    for path in (tmp_path / "one").iterdir():
        for other in ("two", "resumed"):
            assert path.read_bytes() == (tmp_path / other / path.name).read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"over_length": "split"}, "over_length 'split' would cut sequences out of their group"),
        ({"over_length": "truncate"}, "over_length 'truncate' would cut"),
        ({"max_sequences_per_bin": 4}, "max_sequences_per_bin cannot be kept"),
        ({"format": "seqpack"}, "seqpack's layout cannot say which sequences are a group"),
        ({"on_bad_row": "skip"}, "on_bad_row 'skip' would leave a group without"),
        ({"append": True}, "append goes without groups"),
        ({"group_size": 3}, "group_column and group_size both say"),
        ({"group_column": None, "group_size": 2}, "9 rows are no multiple of group_size 2: 1 are left over"),
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
def test_what_makes_no_sense_is_refused(tmp_path, table, options, message):
    lengths = [5, 3, 9, 2, 1, 1, 7, 8, 1]
    table = table.set_column(0, "n", [lengths])
    table = table.append_column("name", [["a"] * 9]).append_column("below", [[0] * 8 + [-1]])
    table = table.append_column("missing", [pa.array([1, 1, None, 2, 2, 2, 2, 3, 3])])
    table = table.append_column("twice", [[5, *range(10, 17), 5]])
    arguments = {"length_column": "n", "id_column": "id", "group_column": "prompt", "max_seq_len": 32} | options
    with pytest.raises(ValueError, match=message):
        prepare(lengths=table, output=tmp_path / "set", progress=False, **arguments)
    assert not (tmp_path / "set").exists()


def test_a_grouped_dataset_is_not_appended_to(tmp_path, table):
    pq.write_table(table, tmp_path / "x.parquet")
    arguments = {"length_column": "n", "max_seq_len": 12, "output": tmp_path / "set", "progress": False}
    prepare(tmp_path / "x.parquet", group_column="prompt", **arguments)
    with pytest.raises(ValueError, match="cannot continue set, whose plan is over groups"):
        prepare(tmp_path / "x.parquet", append=True, **arguments)


@pytest.mark.parametrize("name", ["groups.npy", "members.npy", "member_order.npy", "pools.npy"])
def test_an_altered_table_is_refused(tmp_path, table, name):
    output = tmp_path / "set"
    columns = {"length_column": "n", "id_column": "id", "group_column": "prompt"}
    prepare(lengths=table, **columns, max_seq_len=12, output=output, progress=False)
    data = bytearray((output / name).read_bytes())
    data[-1] ^= 1
    (output / name).write_bytes(data)
    with pytest.raises(PreparedDatasetError, match=name):
        open_prepared(output)


def test_the_command_line_prepares_inspects_and_verifies(tmp_path, table):
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
