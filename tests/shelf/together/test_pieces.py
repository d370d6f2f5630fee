"""Split, truncated and aligned datasets from a real server into batches: every token where it should be, once."""

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tests.flat_words import prepare

from packhorse.cli.stream import command as stream
from packhorse.client import BatchFormat, PackedDataset, RemainderPolicy, connect
from packhorse.client.batches.batch import BatchAssembler
from packhorse.client.sources import IndexableSource, MegatronSource, TokenSourceError
from packhorse.pictures.commands.show import command as show
from packhorse.proof.commands.audit import command as audit
from packhorse.topology import Topology

ROWS, LIMIT = 500, 50
DATASETS = {
    "head": {"over_length": "truncate"},
    "split": {"over_length": "split"},
    "tail": {"over_length": "truncate", "keep": "tail"},
    "aligned": {"over_length": "truncate", "align": 8, "extra_tokens": 2},
    "aligned-split": {"over_length": "split", "align": 8, "extra_tokens": 2},
    "aligned-tail": {"over_length": "truncate", "keep": "tail", "align": 4},
    "aligned-drop": {"over_length": "drop", "align": 16, "extra_tokens": 1},
    "without-last": {"over_length": "truncate", "extra_tokens": -1},
    "without-last-split": {"over_length": "split", "extra_tokens": -1},
    "without-last-tail": {"over_length": "truncate", "keep": "tail", "align": 4, "extra_tokens": -1},
}


def parts_of(name, length):
    """(start, end, place) of everything planned of a sequence."""
    options = DATASETS[name]
    align, extra = options.get("align", 1), options.get("extra_tokens", 0)
    fits = LIMIT // align * align - extra
    if length <= fits:
        spans = [(0, length)]
    elif options["over_length"] == "split":
        spans = [(start, min(start + fits, length)) for start in range(0, length, fits)]
    elif options["over_length"] == "drop":
        spans = []
    else:
        spans = [(length - fits, length)] if options.get("keep") == "tail" else [(0, fits)]
    return [(start, end, -(-max(end - start + extra, 1) // align) * align) for start, end in spans]


def leaves_out_last(name):
    """Whether a sequence's last token is only a label."""
    return DATASETS[name].get("extra_tokens") == -1


@pytest.fixture(scope="module")
def root(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pieces")
    lengths = [len(tokens) for tokens in corpus.sequences[:ROWS]]
    assert max(lengths) > 3 * LIMIT
    pq.write_table(pa.table({"n": lengths}), folder / "x.parquet")
    for name, options in DATASETS.items():
        output = folder / "root" / name
        prepare(folder / "x.parquet", length_column="n", max_seq_len=LIMIT, output=output, progress=False, **options)
    return folder / "root"


@pytest.fixture(scope="module")
def remote(root, make_server):
    with make_server(root) as server, connect(server.target) as client:
        yield client


@pytest.fixture(scope="module")
def local(root):
    with connect(f"embedded:{root}") as client:
        yield client


def planned(corpus, name):
    """Counter of (id, start, place)."""
    return Counter(
        (number, start, place)
        for number, tokens in enumerate(corpus.sequences[:ROWS])
        for start, _, place in parts_of(name, len(tokens))
    )


def entries_of(block):
    starts = np.zeros_like(block.ids) if block.first_tokens is None else block.first_tokens
    return Counter(zip(block.ids.tolist(), starts.tolist(), block.lengths.tolist(), strict=True))


@pytest.mark.parametrize("name", DATASETS)
def test_remote_and_embedded_carry_the_same_entries(remote, local, corpus, name):
    assert remote.get_dataset(name) == local.get_dataset(name)
    info = remote.get_dataset(name)
    expected = DATASETS[name]
    assert (info.align, info.extra_tokens) == (expected.get("align", 1), expected.get("extra_tokens", 0))
    assert (info.over_length, info.keep) == (expected["over_length"], expected.get("keep", "head"))
    for remainder in RemainderPolicy:
        came = Counter()
        for rank in range(3):
            topology = Topology(world_size=3, batch_size=7, remainder=remainder)
            options = {"topology": topology, "rank": rank, "seed": 5, "epoch": 2}
            blocks = [list(client.stream_bins(name, **options)) for client in (remote, local)]
            assert len(blocks[0]) == len(blocks[1])
            for a, b in zip(*blocks, strict=True):
                for field in ("ids", "lengths", "bin_ends", "positions", "first_tokens"):
                    left, right = getattr(a, field), getattr(b, field)
                    assert (left is None) == (right is None)
                    assert left is None or (left.dtype, left.tobytes()) == (right.dtype, right.tobytes())
                came += entries_of(a)
        if remainder in (RemainderPolicy.SPREAD, RemainderPolicy.EMPTY):
            assert came == planned(corpus, name)
    whole = remote.get_bins(name, seed=5, epoch=2, positions=range(info.num_bins))
    assert (whole.first_tokens is not None) == name.endswith(("split", "tail"))
    assert entries_of(whole) == planned(corpus, name)
    assert entries_of(whole.slice(0, 3)) + entries_of(whole.slice(3, info.num_bins)) == planned(corpus, name)


@pytest.mark.parametrize("continue_positions", [False, True])
@pytest.mark.parametrize("indexable", [False, True])
@pytest.mark.parametrize("name", DATASETS)
def test_batches_hold_every_planned_token_once(root, corpus, no_launcher, local, name, indexable, continue_positions):
    source = IndexableSource([tokens.tolist() for tokens in corpus.sequences]) if indexable else corpus.megatron
    for shift in (True,) if leaves_out_last(name) else (False, True):
        dataset = PackedDataset(
            f"embedded:{root}",
            name,
            source,
            batch_size=4,
            seed=1,
            rank=(0, 1),
            batch=BatchFormat(pad_token_id=77777, shift_labels=shift, continue_positions=continue_positions),
        )
        blocks = [
            block.slice(4 * i, 4 * i + 4)
            for block in local.stream_bins(name, seed=1, topology=Topology(batch_size=4))
            for i in range(len(block.steps))
        ]
        batches = list(dataset)
        assert len(batches) == len(blocks)
        left = planned(corpus, name)
        for block, batch in zip(blocks, batches, strict=True):
            left -= entries_of(block)
            expected = rows_of(corpus, name, block, shift, continue_positions)
            for field, rows in expected.items():
                assert batch[field].tolist() == rows, field
        assert not left


def rows_of(corpus, name, block, shift, continue_positions):
    """What a batch should be, token by token."""
    keys = ("input_ids", "labels", "sequence_ids", "position_ids", "attention_mask")
    rows, offsets = {key: [] for key in keys}, [0]
    begin = 0
    for end in block.bin_ends.tolist():
        row, free = [], end - begin + 1
        for index, at in enumerate(range(begin, end)):
            number, place = int(block.ids[at]), int(block.lengths[at])
            start = 0 if block.first_tokens is None else int(block.first_tokens[at])
            held = corpus.sequences[number].tolist()
            (stop,) = [e for s, e, p in parts_of(name, len(held)) if (s, p) == (start, place)]
            tokens = held[start:stop]
            labels = [*tokens[1:], -100] if shift else [-100, *tokens[1:]]
            if leaves_out_last(name) and len(tokens) > 1:
                tokens, labels = tokens[:-1], labels[:-1]
            offsets.append(offsets[-1] + len(tokens))
            base = start if continue_positions else 0
            for i in range(place):
                if i < len(tokens):
                    row.append((tokens[i], labels[i], index, base + i, 1))
                else:
                    row.append((77_777, -100, free, base + i, 0))
            free += len(tokens) < place
        row += [(77_777, -100, end - begin, i, 0) for i in range(LIMIT - len(row))]
        for key, column in zip(keys, zip(*row, strict=True), strict=True):
            rows[key].append(list(column))
        begin = end
    return {**rows, "cu_seqlens": offsets}


def test_locate_finds_every_piece(remote, local, corpus):
    ids = [int(np.argmax([len(t) for t in corpus.sequences[:ROWS]])), 10**6, 0]
    options = {"seed": 9, "epoch": 1, "topology": Topology(world_size=2, batch_size=3)}
    locations = remote.locate("split", ids=ids, **options)
    assert locations == local.locate("split", ids=ids, **options)
    expected = []
    for number in ids:
        parts = parts_of("split", len(corpus.sequences[number])) if number < ROWS else [(None, None, None)]
        expected += [(number, start, place) for start, _, place in parts]
    assert [(entry.id, entry.first_token, entry.length) for entry in locations] == expected
    for entry in locations:
        if not entry.found:
            continue
        block = remote.get_bins("split", seed=9, epoch=1, positions=[entry.position])
        at = entry.index_in_bin
        assert (block.ids[at], block.first_tokens[at], block.lengths[at]) == (entry.id, entry.first_token, entry.length)
        assert {entry.step, entry.rank, entry.worker, entry.slot}.isdisjoint({None})


@pytest.mark.parametrize("remainder", ["spread", "drop", "repeat", "empty"])
@pytest.mark.parametrize("name", ["split", "aligned-tail"])
def test_audit_is_exact_with_pieces(root, name, remainder):
    flags = ["--world-size", "3", "--workers-per-rank", "2", "--batch-size", "5", "--remainder", remainder]
    result = CliRunner().invoke(audit, ["--target", f"embedded:{root}", name, *flags])
    assert result.exit_code == 0, result.output
    assert ("came exactly once" if remainder == "drop" else "exactly once: yes") in result.output


def test_audit_notices_one_piece_in_another_ones_place(root, monkeypatch):
    """Two pieces of one sequence: the ids alone would still add up."""
    from packhorse.epoch import Assignment, EpochView

    read, bins_at = Assignment.bins, EpochView.bins

    def wrong(self, steps, rank):
        bins = read(self, steps, rank)
        bins.first_tokens[bins.first_tokens == LIMIT] = 0
        return bins

    monkeypatch.setattr(Assignment, "bins", wrong)
    assert EpochView.bins is bins_at
    result = CliRunner().invoke(audit, ["--target", f"embedded:{root}", "split"])
    assert result.exit_code == 1
    assert f"from token {LIMIT}" in result.output
    assert "repeated: " in result.output


def test_commands_show_starts_where_there_are_any(root, local):
    result = CliRunner().invoke(stream, ["--target", f"embedded:{root}", "split"])
    lines = [json.loads(line) for line in result.output.splitlines()]
    block = local.get_bins("split", positions=range(local.get_dataset("split").num_bins))
    assert [start for line in lines for start in line["first_tokens"]] == block.first_tokens.tolist()
    assert all(len(line["first_tokens"]) == len(line["ids"]) for line in lines)
    result = CliRunner().invoke(stream, ["--target", f"embedded:{root}", "aligned", "--limit", "1"])
    assert "first_tokens" not in json.loads(result.output)
    long = str(block.ids[block.first_tokens > 0][0])
    for name, shown in (("split", True), ("aligned", False)):
        result = CliRunner().invoke(show, ["--target", f"embedded:{root}", name, "--id", long])
        assert ("first_token" in result.output.split("length")[0]) == shown, result.output


@pytest.mark.parametrize("name", ["split", "aligned", "aligned-split", "aligned-tail", "aligned-drop"])
def test_a_source_that_ends_before_the_plan_is_refused(root, corpus, no_launcher, name):
    shorter = [tokens[: max(1, len(tokens) - 17)].tolist() for tokens in corpus.sequences]
    dataset = PackedDataset(f"embedded:{root}", name, shorter, batch_size=4, rank=(0, 1))
    with pytest.raises(TokenSourceError, match=r"sequence \d+: the plan "):
        list(dataset)


@pytest.mark.parametrize("name", ["split", "tail", "aligned", "aligned-split", "aligned-tail", "head"])
def test_a_source_that_goes_on_behind_the_plan_is_refused(root, corpus, no_launcher, name):
    """A sequence that was not cut holds exactly what was planned, and so does what is left of a split one."""
    longer = [[*tokens.tolist(), *range(17)] for tokens in corpus.sequences]
    dataset = PackedDataset(f"embedded:{root}", name, longer, batch_size=4, rank=(0, 1))
    with pytest.raises(TokenSourceError, match=r"sequence \d+: the plan "):
        list(dataset)


@pytest.mark.parametrize("name", ["split", "head"])
def test_a_loss_mask_that_goes_on_behind_the_tokens_is_refused(root, corpus, no_launcher, name):
    masks = [[1] * (len(tokens) + (len(tokens) > LIMIT)) for tokens in corpus.sequences]
    dataset = PackedDataset(
        f"embedded:{root}", name, corpus.megatron, batch_size=4, rank=(0, 1), batch=BatchFormat(loss_mask=masks)
    )
    with pytest.raises(TokenSourceError, match=r"sequence \d+: the loss mask in the list holds \d+ values for its \d+"):
        list(dataset)


def test_another_length_names_what_was_planned_and_what_is_there(local):
    block = local.get_bins("aligned", positions=[0])
    source = IndexableSource({int(i): [1] * 60 for i in block.ids})
    with pytest.raises(TokenSourceError, match=r"room of \d+ tokens.*the 60 tokens .* need 64 with align 8"):
        BatchAssembler(LIMIT, align=8, extra_tokens=2).assemble(block, source)
    with pytest.raises(ValueError, match="align must be at least 1"):
        BatchAssembler(LIMIT, align=0)


def test_sources_tell_whole_lengths(corpus):
    ids = np.array([3, 0, 3])
    expected = [len(corpus.sequences[i]) for i in ids]
    for source in (MegatronSource(corpus.megatron), IndexableSource(corpus.sequences)):
        lengths = source.lengths(ids)
        assert (lengths.dtype, lengths.tolist()) == (np.int64, expected)
    with pytest.raises(TokenSourceError, match="no sequence with id 2000"):
        MegatronSource(corpus.megatron).lengths(np.array([2000]))
