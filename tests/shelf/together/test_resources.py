"""Resources through `prepare`: no bin over a cap, whatever holds the column, and what is refused."""

import json
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tests.flat_words import dry_run, prepare

from packhorse.analysis import context_lengths
from packhorse.analysis.facts import costly_facts
from packhorse.cli import main
from packhorse.client import connect
from packhorse.dataset import MANIFEST, PreparedDatasetError, open_prepared
from packhorse.epoch.assignment import Assignment
from packhorse.prepare import Resource
from packhorse.prepare.append.rewritten import refuse_rewritten
from packhorse.topology import Balance, Topology

NUM, MAX_SEQ_LEN, CAP = 500, 512, 6
DRAW = np.random.default_rng(3)
TILES = np.where(DRAW.random(NUM) < 0.4, 0, DRAW.integers(1, 5, NUM))
LENGTHS = 40 * TILES + DRAW.integers(1, 200, NUM)
GRIDS = [[[1, 2, 2]] * int(number) for number in TILES]
TABLE = pa.table(
    {
        "n": LENGTHS,
        "tiles": TILES,
        "each": pa.array([[1] * int(number) for number in TILES], pa.list_(pa.int32())),
        "grids": pa.array(GRIDS, pa.list_(pa.list_(pa.int64()))),
        "pair": np.arange(NUM) // 2,
    }
)
TILES_UP_TO_CAP = Resource(name="tiles", column="tiles", cap=CAP)


def grids(*rows):
    return pa.array(rows, pa.list_(pa.list_(pa.int64())))


def prepared(folder, **words):
    given = {"lengths": TABLE, "resources": (TILES_UP_TO_CAP,), **words}
    options = {"length_column": "n", "max_seq_len": MAX_SEQ_LEN, "progress": False}
    return prepare(**{**options, **given}, output=folder)


def bins_of(folder, epoch=0):
    """(ids, tokens, tiles) of every bin of an epoch."""
    bins = open_prepared(folder).epoch(epoch, seed=5).bins(range(open_prepared(folder).manifest.num_bins))
    assert (bins.lengths == LENGTHS[bins.ids]).all()
    parts = np.split(bins.ids, bins.bin_ends[:-1])
    return [(ids.tolist(), int(LENGTHS[ids].sum()), int(TILES[ids].sum())) for ids in parts]


@pytest.mark.parametrize("epoch", [0, 1])
def test_every_sequence_comes_once_and_no_bin_is_over_a_cap(tmp_path, epoch):
    manifest = prepared(tmp_path / "set")
    found = bins_of(tmp_path / "set", epoch)
    assert sorted(id for ids, _, _ in found for id in ids) == list(range(NUM))
    assert all(tokens <= MAX_SEQ_LEN and tiles <= CAP for _, tokens, tiles in found)
    assert manifest.lower_bound >= max(-(-LENGTHS.sum() // MAX_SEQ_LEN), -(-TILES.sum() // CAP))
    assert manifest.num_bins <= 1.06 * manifest.lower_bound  # few, small bins
    assert (manifest.total_tokens, manifest.own_tokens) == (LENGTHS.sum(), LENGTHS.sum())
    assert not open_prepared(tmp_path / "set").has_groups


def test_two_epochs_put_other_sequences_together(tmp_path):
    prepared(tmp_path / "set")
    mates = [{frozenset(ids) for ids, _, _ in bins_of(tmp_path / "set", epoch)} for epoch in (0, 1)]
    assert len(mates[0] & mates[1]) < len(mates[0]) / 2


def test_every_kind_of_input_gives_the_same_bins(tmp_path):
    pq.write_table(TABLE, tmp_path / "rows.parquet", row_group_size=70)
    tokens = TABLE.set_column(0, "n", pa.array([list(range(n)) for n in LENGTHS]))
    pq.write_table(tokens, tmp_path / "tokens.parquet", row_group_size=90)
    feather.write_feather(TABLE, tmp_path / "rows.arrow", chunksize=60, compression="uncompressed")
    array = np.array(list(zip(LENGTHS, TILES, strict=True)), [("n", "i4"), ("tiles", "u8")])
    np.save(tmp_path / "rows.npy", array)
    for name in ("rows.parquet", "tokens.parquet", "rows.arrow", "rows.npy"):
        prepared(tmp_path / name.replace(".", "_"), input=tmp_path / name, lengths=None)
    prepared(tmp_path / "array", lengths=array)
    for column in ("each", "grids"):
        factor = 4 if column == "grids" else 1
        prepared(tmp_path / column, resources=(Resource(name="tiles", column=column, cap=factor * CAP),))
    folders = [folder for folder in tmp_path.iterdir() if folder.is_dir()]
    found = {json.dumps(bins_of(folder)) for folder in folders}
    assert len(folders) == 7
    assert len(found) == 1


def test_the_manifest_and_the_service_tell_what_there_is(tmp_path):
    prepared(tmp_path / "set", resources=(TILES_UP_TO_CAP, Resource(name="patches", column="grids")))
    tiles, patches = open_prepared(tmp_path / "set").manifest.resources
    assert (tiles.name, tiles.cap, tiles.total, tiles.most) == ("tiles", CAP, TILES.sum(), TILES.max())
    assert (patches.name, patches.cap, patches.total, patches.most) == ("patches", None, 4 * TILES.sum(), 16)
    with connect(f"embedded:{tmp_path}") as client:
        told = client.get_dataset("set")
    assert [str(each) for each in told.resources] == [
        f"{TILES.sum():,} tiles, at most 4 a sequence and 6 a bin",
        f"{4 * TILES.sum():,} patches, at most 16 a sequence",
    ]
    assert told.num_groups == 0
    result = CliRunner().invoke(main, ["inspect", str(tmp_path / "set")])
    assert f"tiles: {TILES.sum():,} of column 'tiles', at most 4 a sequence; bins are" in result.output
    assert "a row may hold more of a resource than its cap" in result.output
    manifest = open_prepared(tmp_path / "set").manifest
    assert f"│ {manifest.num_bins} │ {manifest.efficiency:.2%} │" in " ".join(result.output.split())  # no class's rooms
    for command in (["compare", "--algorithm", "best-fit"], ["context", "--world-size", "4"]):
        result = CliRunner().invoke(main, ["plan", *command, str(tmp_path / "set")])
        said = " ".join(result.output.split())
        assert f"at most 6 tiles a bin, the dataset's own plan has {manifest.num_bins} bins" in said


def test_the_status_page_compares_no_packers_that_know_tokens_only(tmp_path):
    prepared(tmp_path / "capped")
    prepared(tmp_path / "counted", resources=(Resource(name="tiles", column="tiles"),))
    packers = [costly_facts(open_prepared(tmp_path / name))["packers"] for name in ("capped", "counted")]
    assert [bool(each) for each in packers] == [False, True]


def test_a_dataset_without_resources_is_what_it_was(tmp_path):
    plain = prepared(tmp_path / "plain", resources=())
    assert "resources" not in json.loads((tmp_path / "plain" / MANIFEST).read_text())
    assert (
        plain.digest == prepare(lengths=LENGTHS, max_seq_len=MAX_SEQ_LEN, output=tmp_path / "x", progress=False).digest
    )


def test_another_cap_is_another_dataset(tmp_path):
    digests = {
        prepared(tmp_path / str(cap), resources=(Resource(name="tiles", column="tiles", cap=cap),)).digest
        for cap in (CAP, CAP + 1, None)
    }
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("text", "cap", "cost"),
    [("a=b", None, 0), ("a=b:5", 5, 0), ("a=b:5:7", 5, 7), ("a=b::7", None, 7), ("a=b:c:5", 5, 0), ("a=b=c", None, 0)],
)
def test_a_flag_tells_column_cap_and_cost(text, cap, cost):
    column = {"a=b:c:5": "b:c", "a=b=c": "b=c"}.get(text, "b")
    resource = Resource.parse(text)
    assert resource == Resource(name="a", column=column, cap=cap, cost=cost)
    assert str(resource) == text


def test_tokens_are_no_resource():
    with pytest.raises(ValueError, match="its name is 'tokens', whose cap is max_seq_len; call it something else"):
        Resource.parse("tokens=n:5")


@pytest.mark.parametrize("text", ["a", "a=", "=b", "a=b:-5", "a=b:1.5", "a=b:4:-3", "a=b:4:3:9"])
def test_a_flag_that_is_none_is_told_its_form(text):
    with pytest.raises(ValueError, match=f"NAME=COLUMN:CAP:COST, .* got '{text}'"):
        Resource.parse(text)


def test_a_bin_costs_what_its_tokens_and_tiles_cost(tmp_path):
    costly = Resource(name="tiles", column="tiles", cap=CAP, cost=1000)
    manifest = prepared(tmp_path / "set", resources=(Resource(name="patches", column="grids", cost=7), costly))
    dataset = open_prepared(tmp_path / "set")
    positions = np.arange(manifest.num_bins)[::-3]
    epoch = dataset.epoch(0, seed=5)
    expected = [
        sum(50 * LENGTHS[id] + LENGTHS[id] ** 2 + (1000 + 4 * 7) * TILES[id] for id in ids)
        for ids in np.split(epoch.bins(positions).ids, epoch.bins(positions).bin_ends[:-1])
    ]
    assert epoch.costs(positions, 50).tolist() == expected
    assert prepared(tmp_path / "other", resources=(TILES_UP_TO_CAP,)).digest != manifest.digest


def test_ranks_are_balanced_by_both(tmp_path):
    def waiting(cost):
        prepared(tmp_path / str(cost), resources=(Resource(name="tiles", column="tiles", cap=CAP, cost=cost),))
        epoch = open_prepared(tmp_path / str(cost)).epoch(0, seed=5)
        topology = Topology(world_size=4, accumulation=8, cost_linear=1000)
        positions = np.arange(epoch.num_bins // 32 * 32)
        arranged = Assignment(epoch, replace(topology, balance=Balance.OPTIMIZER_STEP))
        real = open_prepared(tmp_path / "100000").epoch(0, seed=5).costs(positions, 1000)
        by_position = dict(zip(positions.tolist(), real.tolist(), strict=True))
        of_ranks = [
            [by_position[int(p)] for p in arranged.bins(range(len(positions) // 4), rank).positions]
            for rank in range(4)
        ]
        sums = np.array(of_ranks).reshape(4, -1, 8).sum(axis=2)
        return float(sums.max(axis=0).sum() / sums.mean(axis=0).sum() - 1)

    with_tiles, by_tokens = waiting(100_000), waiting(0)
    assert with_tiles < 0.02 < by_tokens


def test_groups_share_a_bin_and_its_budgets(tmp_path):
    manifest = prepared(
        tmp_path / "set",
        max_seq_len=1024,
        group_column="pair",
        resources=(Resource(name="tiles", column="tiles", cap=12),),
    )
    dataset = open_prepared(tmp_path / "set")
    bins = dataset.epoch(0, seed=1).bins(range(manifest.num_bins))
    for ids, groups in zip(
        np.split(bins.ids, bins.bin_ends[:-1]), np.split(bins.group_ids, bins.bin_ends[:-1]), strict=True
    ):
        assert LENGTHS[ids].sum() <= 1024
        assert TILES[ids].sum() <= 12
        assert (ids // 2 == groups).all()
        assert len(ids) == 2 * len(set(groups.tolist()))
    assert dataset.has_groups


def test_what_does_not_fit_is_refused_or_left_out_and_counted(tmp_path):
    small = Resource(name="tiles", column="tiles", cap=2)
    with pytest.raises(ValueError, match=r"sequence \d+ \(row \d+\) takes \d of resource 'tiles', over its cap of 2"):
        prepared(tmp_path / "set", resources=(small,))
    assert not (tmp_path / "set").exists()
    manifest = prepared(tmp_path / "set", resources=(small,), over_length="drop")
    assert manifest.over_length.sequences == (TILES > 2).sum()
    assert manifest.over_length.tokens == LENGTHS[TILES > 2].sum()
    left = open_prepared(tmp_path / "set").over_length()
    assert left[:, 0].tolist() == np.flatnonzero(TILES > 2).tolist()
    [own] = context_lengths(open_prepared(tmp_path / "set"))
    assert (own.sequences_cut, own.tokens_cut) == ((TILES > 2).sum(), LENGTHS[TILES > 2].sum())
    dry = dry_run(
        lengths=TABLE, length_column="n", max_seq_len=MAX_SEQ_LEN, resources=(TILES_UP_TO_CAP,), output=tmp_path / "dry"
    )
    whole = prepared(tmp_path / "whole")
    assert (dry.stats.n_bins, dry.stats.total_tokens) == (whole.num_bins, whole.total_tokens)


def test_any_number_of_workers_writes_the_same_and_work_is_resumed(tmp_path):
    pq.write_table(TABLE, tmp_path / "rows.parquet", row_group_size=50)
    folders = []
    for workers in (1, 3):
        folder = tmp_path / str(workers)
        prepared(
            folder, input=tmp_path / "rows.parquet", lengths=None, workers=workers, engine="processes", resume=True
        )
        folders.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert folders[0] == folders[1]


@pytest.mark.parametrize("name", ["classes.npy", "resources.npy"])
def test_altered_files_are_refused(tmp_path, name):
    prepared(tmp_path / "set")
    path = tmp_path / "set" / name
    data = bytearray(path.read_bytes())
    data[-8] ^= 1
    path.write_bytes(data)
    with pytest.raises(PreparedDatasetError, match=name):
        open_prepared(tmp_path / "set")


def test_verify_finds_a_sequence_that_takes_more_than_it_is_planned_as(tmp_path, monkeypatch):
    prepared(tmp_path / "set")
    result = CliRunner().invoke(main, ["verify", str(tmp_path / "set")])
    assert result.exit_code == 0, result.output
    amounts = np.load(tmp_path / "set" / "resources.npy")
    amounts[17] += 3
    real = open_prepared

    def opened(path, **options):
        dataset = real(path, **options)
        return replace(dataset, groups=replace(dataset.groups, resources=amounts))

    monkeypatch.setattr("packhorse.cli.verify.open_prepared", opened)
    result = CliRunner().invoke(main, ["verify", str(tmp_path / "set")])
    assert result.exit_code == 1
    assert "sequence 17 takes" in result.output


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--resource", "tiles"], "--resource must be NAME=COLUMN, NAME=COLUMN:CAP or NAME=COLUMN:CAP:COST"),
        (["--resource", "tiles=tiles:0"], "the cap of resource 'tiles' must be an integer in [1, 2147483647], got 0"),
        (["--resource", "tiles=tiles::9999999999999"], "the cost of resource 'tiles' must be an integer in [0, "),
        (["--resource", "tiles=tiles::4398046511104"], "the cost of resource 'tiles' makes a bin cost up to"),
        (["--resource", "a=tiles", "--resource", "a=each"], "distinct names, got a, a"),
        (["--resource", "tiles=nothing"], "nothing"),
        (["--resource", "tiles=tiles", "--over-length", "truncate"], "--over-length truncate would cut a sequence"),
        (["--resource", "tiles=tiles", "--group-column", "pair", "--over-length", "split"], "out of their group"),
        (["--resource", "tiles=tiles", "--max-sequences-per-bin", "3"], "--max-sequences-per-bin does not go with"),
        (["--resource", "tiles=tiles", "--on-bad-row", "skip"], "--on-bad-row skip does not go with resources"),
        (["--resource", "tiles=tiles", "--format", "seqpack"], "does not know resources"),
        (["--resource", "tiles=tiles", "--algorithm", "optimal"], "leave algorithm out"),
    ],
)
def test_flags_that_do_not_go_together(tmp_path, flags, said):
    pq.write_table(TABLE, tmp_path / "rows.parquet")
    command = ["prepare", "--input", str(tmp_path / "rows.parquet"), "--length-column", "n", "--max-seq-len", "512"]
    result = CliRunner().invoke(main, [*command, "--output", str(tmp_path / "set"), *flags])
    assert result.exit_code in (1, 2)
    assert said in result.stderr
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1, -1, 2], "row 1, column 'tiles' is below 0, or holds a null or a grid that is not"),
        ([1, 2, 2**31], "row 2, column 'tiles' is over 2^31 - 1, the most"),
        ([None, 2, 2], "row 0, column 'tiles' is null, but a resource is a number: write 0"),
        ([1.5, 2.0, 2.0], "column 'tiles' holds double, but a resource is a column of integers"),
        (pa.array([[-5, 10], [], [1]], pa.list_(pa.int64())), "row 0, column 'tiles' is below 0"),
        (grids([[1, 2, 3]], [[]], []), "row 1, column 'tiles' is below 0, or holds a null or a grid that"),
        (grids([[1, 2, 3]], [[2, 3]], []), "row 1, column 'tiles' is below 0, or holds a null or a grid"),
        (grids([], [[1, 2, 3], [1, 2, 3, 1]], []), "row 1, column 'tiles' is below 0, or holds a null or a grid"),
        (grids([], [], [[1, -2, -3]]), "row 2, column 'tiles' is below 0"),
        (grids([[1, None, 3]], [], []), "row 0, column 'tiles' is below 0, or holds a null"),
        (grids([[1, 2**20, 2**20]], [], []), "row 0, column 'tiles' is over 2^31 - 1"),
    ],
)
def test_a_bad_row_is_named(tmp_path, values, said):
    table = pa.table({"n": [3, 4, 5], "tiles": values})
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        prepared(tmp_path / "set", lengths=table)
    assert "on_bad_row" not in str(caught.value)  # which resources refuse


def test_an_index_without_columns_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no columns"):
        prepared(tmp_path / "other", lengths=LENGTHS, length_column=None)


@pytest.mark.parametrize("grouping", [{}, {"group_column": "pair"}])
def test_what_was_appended_in_steps_is_what_is_prepared_at_once(tmp_path, grouping):
    options = {**grouping, "over_length": "drop", "max_seq_len": 320, "align": 4}
    for number, (begin, end) in enumerate([(0, 100), (100, 102), (102, NUM)]):
        manifest = prepared(tmp_path / "grown", lengths=TABLE[begin:end], append=number > 0, **options)
    whole = prepared(tmp_path / "whole", **options)
    assert whole.over_length.sequences
    assert manifest.version == 3
    assert manifest.digest == whole.digest
    for path in (tmp_path / "whole").iterdir():
        if path.name != MANIFEST:
            assert (tmp_path / "grown" / path.name).read_bytes() == path.read_bytes(), path.name
    assert CliRunner().invoke(main, ["verify", str(tmp_path / "grown"), "--all-versions"]).exit_code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"resources": ()}, "its resources were tiles=tiles:6, and are none"),
        ({"resources": (Resource(name="tiles", column="tiles", cap=7, cost=2),)}, "and are tiles=tiles:7:2"),
        ({"resources": (Resource(name="tiles", column="tiles"),)}, "and are tiles=tiles$"),
    ],
)
def test_other_resources_are_not_appended(tmp_path, words, said):
    prepared(tmp_path / "set", group_size=1)
    with pytest.raises(ValueError, match=said):
        prepared(tmp_path / "set", append=True, group_size=1, **words)


def test_a_version_whose_sequences_take_something_else_does_not_continue_another(tmp_path):
    prepared(tmp_path / "before", lengths=TABLE[:100])
    prepared(tmp_path / "grown")
    prepared(tmp_path / "altered", lengths=TABLE.set_column(1, "tiles", pa.array(np.where(TILES == 4, 3, TILES))))
    before, grown, altered = (open_prepared(tmp_path / name) for name in ("before", "grown", "altered"))
    refuse_rewritten(before, grown)
    with pytest.raises(ValueError, match="does not hold what before was prepared from"):
        refuse_rewritten(before, altered)
