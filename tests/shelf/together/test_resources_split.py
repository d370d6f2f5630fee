"""Resources with `over_length="split"`: text is cut into pieces, what has images is not, and every token comes once."""

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.flat_words import dry_run, prepare
from tests.shelf.together.test_media import IMAGE

from packhorse.cli import main
from packhorse.client import BatchFormat, PackedDataset, connect
from packhorse.client.batches import Media
from packhorse.dataset import PreparedDatasetError, open_prepared
from packhorse.prepare import Resource

MAX_SEQ_LEN, CAP = 64, 4
DRAW = np.random.default_rng(8)
NUM = 300
TILES = np.where(DRAW.random(NUM) < 0.6, 0, DRAW.integers(1, CAP + 1, NUM))
LENGTHS = np.where(TILES > 0, 10 * TILES + DRAW.integers(1, 20, NUM), DRAW.integers(1, 300, NUM))
IDS = DRAW.permutation(NUM)
IS_LONG = LENGTHS > MAX_SEQ_LEN
SIZES = list(zip(LENGTHS.tolist(), TILES.tolist(), strict=True))


def prepared(folder, lengths=LENGTHS, tiles=TILES, *, ids=None, cap=CAP, **words):
    columns = {"n": lengths, "tiles": tiles} | ({} if ids is None else {"id": ids})
    options = {"max_seq_len": MAX_SEQ_LEN, "over_length": "split", "progress": False, **words}
    resources = (Resource(name="tiles", column="tiles", cap=cap),)
    column = {} if ids is None else {"id_column": "id"}
    table = pa.table(columns)
    return prepare(lengths=table, length_column="n", resources=resources, output=folder, **column, **options)


def check_epoch(dataset, lengths, tiles, cap):
    """Every token of every sequence comes once; only text is cut; no bin is over a budget. Arrays are by id."""
    bins = dataset.epoch(0, seed=3).bins(range(dataset.manifest.num_bins))
    firsts = np.zeros(len(bins.ids), np.int64) if bins.first_tokens is None else bins.first_tokens.astype(np.int64)
    assert (bins.first_tokens is None) == (dataset.manifest.start_dtype is None)
    longest = dataset.manifest.options.rooms.longest
    own = np.minimum(lengths[bins.ids] - firsts, longest)
    assert (dataset.manifest.options.rooms.room(own) == bins.lengths).all()
    order = np.lexsort((firsts, bins.ids))
    for sequence in range(len(lengths)):
        some = order[bins.ids[order] == sequence]
        assert firsts[some].tolist() == list(range(0, lengths[sequence], longest))
        assert own[some].sum() == lengths[sequence]
        assert len(some) == 1 or tiles[sequence] == 0
    for ids, taken in zip(
        np.split(bins.ids, bins.bin_ends[:-1]), np.split(bins.lengths, bins.bin_ends[:-1]), strict=True
    ):
        assert taken.sum() <= dataset.manifest.max_seq_len
        assert tiles[ids].sum() <= cap


@settings(max_examples=40, deadline=None)
@given(data=st.data(), align=st.sampled_from([1, 8]), extra=st.integers(0, 3), in_order=st.booleans())
def test_every_token_comes_once(tmp_path_factory, data, align, extra, in_order):
    num = data.draw(st.integers(1, 30))
    tiles = np.array(data.draw(st.lists(st.integers(0, 3), min_size=num, max_size=num)))
    lengths = np.array([data.draw(st.integers(1, 32 if some else 200)) for some in tiles.tolist()])
    ids = np.arange(num) if in_order else np.array(data.draw(st.permutations(range(num))))
    folder = tmp_path_factory.mktemp("split") / "set"
    manifest = prepared(folder, lengths, tiles, ids=ids, max_seq_len=48, align=align, extra_tokens=extra)
    by_id = np.argsort(ids)
    dataset = open_prepared(folder)
    check_epoch(dataset, lengths[by_id], tiles[by_id], CAP)
    longest = manifest.options.rooms.longest
    pieces = -(-lengths // longest)
    ledger, is_long = manifest.over_length, lengths > longest
    assert (ledger.sequences, ledger.source_tokens, ledger.tokens, ledger.pieces, ledger.over_cap) == (
        *(is_long.sum(), lengths[is_long].sum(), 0, pieces[is_long].sum(), 0),
    )
    assert (manifest.num_sequences, manifest.own_tokens) == (pieces.sum(), lengths.sum())
    located = dataset.epoch(0, seed=3).locate(np.array([*range(num), num, 2**63 - 1, -(2**63)]))
    assert located.ids[: len(located.ids) - 3].tolist() == np.repeat(np.arange(num), pieces[by_id]).tolist()
    assert located.positions[-3:].tolist() == located.first_tokens[-3:].tolist() == [-1] * 3
    bins = dataset.epoch(0, seed=3).bins(located.positions[:-3])
    at = np.concatenate(([0], bins.bin_ends[:-1])) + located.index_in_bin[:-3]
    firsts = np.zeros(len(bins.ids), np.int64) if bins.first_tokens is None else bins.first_tokens
    assert bins.ids[at].tolist() == located.ids[:-3].tolist()
    assert firsts[at].tolist() == located.first_tokens[:-3].tolist()
    shutil.rmtree(folder)


def test_a_dataset_of_short_sequences_is_that_of_every_policy(tmp_path):
    is_short = ~IS_LONG
    split = prepared(tmp_path / "split", LENGTHS[is_short], TILES[is_short])
    error = prepared(tmp_path / "error", LENGTHS[is_short], TILES[is_short], over_length="error")
    assert split.start_dtype is None
    assert split.digest.split("-")[2:] == error.digest.split("-")[2:]
    assert split.over_length == error.over_length


@pytest.mark.parametrize(
    ("row", "length", "tiles", "said"),
    [
        (7, 90, 2, r"sequence 7 \(row 7\) has 90 tokens, over max_seq_len 64, and takes 2 of resource 'tiles', and "),
        (7, 30, 5, r"sequence 7 \(row 7\) takes 5 of resource 'tiles', over its cap of 4, and "),
    ],
)
def test_what_has_images_and_does_not_fit_is_refused_with_how_many_there_are(tmp_path, row, length, tiles, said):
    lengths, amounts = LENGTHS.copy(), TILES.copy()
    lengths[:3], amounts[:3] = 200, 0  # pieces before it: the row that is named is the input's
    lengths[[row, row + 1]], amounts[[row, row + 1]] = length, tiles
    with pytest.raises(ValueError, match=said + r"cannot be split \(in all: 2 such rows\); raise max_seq_len "):
        prepared(tmp_path / "set", lengths, amounts)
    lengths[row + 1], amounts[row + 1] = 5, 1
    with pytest.raises(ValueError, match=said + r"cannot be split \(in all: 1 such row\); .* over_length='drop'"):
        prepared(tmp_path / "set", lengths, amounts)
    assert not (tmp_path / "set").exists()
    manifest = prepared(tmp_path / "set", lengths, amounts, over_length="drop")
    is_out = (lengths > MAX_SEQ_LEN) | (amounts > CAP)
    over_cap = (amounts > CAP) & (lengths <= MAX_SEQ_LEN)
    assert (manifest.over_length.sequences, manifest.over_length.over_cap) == (is_out.sum(), over_cap.sum())
    result = CliRunner().invoke(main, ["inspect", str(tmp_path / "set")])
    said_apart = f"{is_out.sum()} sequences, 1 of them only over a cap" if tiles > CAP else f"{is_out.sum()} sequences,"
    assert f"over-length (drop): {said_apart}" in result.output


def test_there_may_be_more_classes_than_tokens(tmp_path):
    manifest = prepared(tmp_path / "set")
    assert manifest.num_rooms > MAX_SEQ_LEN
    check_epoch(open_prepared(tmp_path / "set"), LENGTHS, TILES, CAP)


def test_what_was_appended_in_steps_is_what_is_prepared_at_once(tmp_path):
    for begin, end in ((0, 70), (70, 71), (71, NUM)):
        grown = prepared(tmp_path / "grown", LENGTHS[begin:end], TILES[begin:end], append=begin > 0)
    whole = prepared(tmp_path / "whole")
    assert (grown.digest, grown.over_length) == (whole.digest, whole.over_length)
    assert (grown.ids_sum_a, grown.start_dtype) == (whole.ids_sum_a, whole.start_dtype)
    assert (
        open_prepared(tmp_path / "grown").over_length().tolist()
        == open_prepared(tmp_path / "whole").over_length().tolist()
    )
    check_epoch(open_prepared(tmp_path / "grown"), LENGTHS, TILES, CAP)


def test_an_error_says_that_text_can_be_split(tmp_path):
    with pytest.raises(ValueError, match=r"over max_seq_len 64; .* or 'split', which cuts those into pieces"):
        prepared(tmp_path / "set", np.array([70, 3]), np.array([0, 1]), over_length="error")
    with pytest.raises(ValueError, match=r"over max_seq_len 64, and takes 1 .* leaves such sequences out$"):
        prepared(tmp_path / "set", np.array([70, 3]), np.array([1, 1]), over_length="error")
    with pytest.raises(ValueError, match="has 1099511627777 tokens; sequences of up to 1099511627776 can be split"):
        prepared(tmp_path / "set", np.array([2**40 + 1, 3]), np.array([0, 1]))


def test_an_id_that_comes_twice_is_still_found(tmp_path):
    ids = IDS.copy()
    ids[np.flatnonzero(IS_LONG)[0]] = ids[np.flatnonzero(IS_LONG)[1]]
    with pytest.raises(ValueError, match=f"{ids[np.flatnonzero(IS_LONG)[1]]}"):
        prepared(tmp_path / "set", ids=ids)


def test_a_dry_run_counts_what_is_written(tmp_path):
    table = pa.table({"n": LENGTHS, "tiles": TILES})
    words = {"length_column": "n", "max_seq_len": MAX_SEQ_LEN, "over_length": "split"}
    resources = (Resource(name="tiles", column="tiles", cap=CAP),)
    dry = dry_run(lengths=table, resources=resources, output=tmp_path / "dry", **words)
    whole = prepared(tmp_path / "whole")
    assert (dry.stats.n_bins, dry.stats.n_sequences) == (whole.num_bins, whole.num_sequences)
    assert dry.over_length == whole.over_length
    written = sum(path.stat().st_size for path in (tmp_path / "whole").iterdir())
    assert abs(dry.disk_bytes - written) < 1 << 15


def test_altered_first_tokens_are_refused(tmp_path):
    prepared(tmp_path / "set")
    path = tmp_path / "set" / "starts.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(PreparedDatasetError, match=r"starts\.npy"):
        open_prepared(tmp_path / "set")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """`chats`, prepared from tokens in which each tile is two image tokens, and a mixture of it with itself."""
    folder = tmp_path_factory.mktemp("tokens")
    rows = [np.concatenate((np.full(2 * t, IMAGE), np.arange(n - 2 * t) % 90 + 20)) for n, t in SIZES]
    pq.write_table(pa.table({"tokens": [row.tolist() for row in rows], "tiles": TILES}), folder / "chats.parquet")
    command = ["prepare", "--input", str(folder / "chats.parquet"), "--max-seq-len", str(MAX_SEQ_LEN)]
    budgets = ["--resource", f"tiles=tiles:{CAP}", "--over-length", "split"]
    result = CliRunner().invoke(main, [*command, *budgets, "--output", str(folder / "chats")])
    assert result.exit_code == 0, result.output
    assert f"over length: {IS_LONG.sum()} sequences split into" in result.output
    prepare(lengths=[30] * 40, max_seq_len=MAX_SEQ_LEN, output=folder / "text", progress=False)
    pq.write_table(pa.table({"tokens": [[5] * 30] * 40}), folder / "text.parquet")
    stages = "[[stages]]\nweights = {chats = 2, text = 1}\n"
    (folder / "both.mixture.toml").write_text("epoch_bins = 90\n" + stages)
    return folder


def test_verify_and_audits_pass(root):
    target, tokens = f"embedded:{root}", str(root / "chats.parquet")
    both = f"chats={tokens},text={root / 'text.parquet'}"
    for command in (
        ["verify", str(root / "chats"), "--tokens", tokens],
        ["audit", "chats", "--world-size", "3", "--target", target, "--tokens", tokens],
        ["audit", "chats", "--world-size", "2", "--balance", "optimizer-step", "--target", target],
        ["audit", "both", "--world-size", "2", "--target", target, "--tokens", both],
        ["inspect", str(root / "chats"), "--windows"],
        ["plan", "compare", str(root / "chats")],
    ):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0, (command, result.output)


def test_pieces_reach_batches_beside_images(root):
    loaded = []

    def load(ids):
        loaded.extend(ids)
        return {each: {"pixels": np.full((int(TILES[each]), 1), each, np.float32)} for each in ids}

    media = Media(
        load=load,
        image_token_id=IMAGE,
        keys=("pixels",),
        grids=lambda tensors: np.tile([1, 1, 2], (len(tensors["pixels"]), 1)),
    )
    dataset = PackedDataset(
        f"embedded:{root}", "chats", str(root / "chats.parquet"), batch_size=2, batch=BatchFormat(media=media)
    )
    num_pieces = 0
    for batch in dataset:
        is_long = IS_LONG[np.array(batch["ids"].tolist())]
        num_pieces += int(is_long.sum())
        assert not set(batch["media"].ids.tolist()) & set(np.flatnonzero(IS_LONG).tolist())
        assert ("pixels" in batch) == bool(TILES[np.array(batch["ids"].tolist())].any())
    assert num_pieces == (-(-LENGTHS[IS_LONG] // MAX_SEQ_LEN)).sum()
    assert sorted(loaded) == np.flatnonzero(TILES).tolist()


def test_a_place_is_told_for_each_piece(root):
    long = int(np.argmax(LENGTHS))
    with connect(f"embedded:{root}") as client:
        located = client.locate("chats", ids=[long], seed=4)
    assert [each.first_token for each in located] == list(range(0, int(LENGTHS[long]), MAX_SEQ_LEN))
