"""The token audit: quiet about sound epochs of every kind, and naming sequence and token where one is not."""

import gc
import re
import weakref

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.flat_words import packed_dataset, prepare

from packhorse.client import PackedDataset, Separators, Topology, as_token_source, connect
from packhorse.client.loading._batch_maker import BatchMaker
from packhorse.client.sources import IndexableSource, MegatronSource
from packhorse.proof import EpochOfStreams, TokenAudit
from packhorse.topology import Skips

ROWS, LIMIT = 300, 64
KINDS = {
    "plain": {"max_seq_len": 256},
    "head": {"over_length": "truncate"},
    "tail": {"over_length": "truncate", "keep": "tail"},
    "drop": {"over_length": "drop"},
    "split": {"over_length": "split"},
    "roomy": {"over_length": "truncate", "align": 8, "extra_tokens": 2},
    "roomy-split": {"over_length": "split", "align": 8, "extra_tokens": 2},
    "roomy-drop": {"over_length": "drop", "align": 16, "extra_tokens": 2},
    "without-last": {"over_length": "drop", "extra_tokens": -1},
    "without-last-split": {"over_length": "split", "align": 4, "extra_tokens": -1},
    "columns": {"max_seq_len": 256, "id_column": "doc"},
}
TOPOLOGY = Topology(world_size=3, workers_per_rank=2, batch_size=2)


@pytest.fixture(scope="module")
def tokens(corpus):
    """Tokens of every sequence, by row; the first ten all have 20."""
    return [sequence[:20] if i < 10 and len(sequence) >= 20 else sequence for i, sequence in _long_first(corpus)]


def _long_first(corpus):
    rows = sorted(corpus.sequences[:ROWS], key=lambda sequence: len(sequence) < 20)
    return enumerate(rows)


@pytest.fixture(scope="module")
def folder(tokens, tmp_path_factory):
    folder = tmp_path_factory.mktemp("audited")
    columns = {
        "n": [len(each) for each in tokens],
        "doc": np.arange(ROWS) + 1000,
        "other": np.arange(ROWS)[::-1] + 1000,
    }
    pq.write_table(pa.table({**columns, "input_ids": [each.tolist() for each in tokens]}), folder / "x.parquet")
    for name, options in KINDS.items():
        options = {"max_seq_len": LIMIT, **options}
        prepare(folder / "x.parquet", length_column="n", output=folder / "root" / name, progress=False, **options)
    return folder


@pytest.fixture(scope="module")
def client(folder):
    with connect(f"embedded:{folder / 'root'}") as client:
        yield client


@pytest.fixture
def audited(client, tokens, no_launcher):
    """Function: the report of an audit of `name` with a source, which is the right one where none is given."""

    def run(name, source=None, *, topology=TOPOLOGY, skip="", against=None, loss_against=None, **options):
        source = IndexableSource(tokens) if source is None else source
        given = {key: value for key, value in options.items() if value is not None}
        dataset = packed_dataset(lambda: client, name, source, batch_size=topology.batch_size, **given)
        streams = EpochOfStreams(
            client=client,
            dataset=client.get_dataset(name),
            epoch=1,
            seed=5,
            topology=topology,
            skip=Skips.parse([skip]),
        )
        against = None if against is None else as_token_source(against)
        return TokenAudit(streams=streams, dataset=dataset, against=against, loss_against=loss_against).audit()

    return run


def changed(tokens, **by_id):
    return [by_id.get(f"i{i}", each) for i, each in enumerate(tokens)]


@pytest.mark.parametrize("name", [name for name in KINDS if name != "columns"])
@pytest.mark.parametrize("remainder", ["spread", "repeat"])
def test_sound_epochs_hold_every_token_but_what_the_ledger_says(audited, tokens, name, remainder):
    separators = Separators.eos_bos(bos_token_id=60_001, eos_token_id=60_002) if "roomy" in name else None
    shift = True if "without-last" in name else None
    topology = Topology(world_size=3, batch_size=2, remainder=remainder)
    mask = [each % 2 for each in tokens]
    report = audited(name, topology=topology, separators=separators, shift_labels=shift, loss_mask=mask)
    assert report.problems == []
    lengths = np.array([len(each) for each in tokens])
    bins = {"plain": 256, "without-last": 65, "without-last-split": 65}
    fits = 62 if "roomy" in name else bins.get(name, LIMIT)
    is_long = lengths > fits
    assert is_long.any() == (name != "plain")
    policy = KINDS[name].get("over_length")
    kept = {"drop": lengths[~is_long], "split": lengths}.get(policy, np.minimum(lengths, fits))
    assert report.tokens == kept.sum()
    assert report.cut_tokens + report.dropped_tokens == lengths.sum() - report.tokens
    assert report.dropped_sequences == (is_long.sum() if policy == "drop" else 0)
    if name == "plain":
        assert report.targets == sum(int((each[1:] % 2).sum()) for each in tokens)


def test_bins_that_no_stream_carries_are_compared_too(audited, tokens):
    topology = Topology(world_size=4, batch_size=3, start_position=5, remainder="drop", balance="micro-step")
    report = audited("plain", topology=topology, skip="10:13")
    assert report.problems == []
    assert set(report.streams.left_out) == {"skip", "start_position", 'remainder="drop"'}
    assert report.tokens == sum(map(len, tokens))


def test_ids_of_a_column_are_looked_up(audited, folder):
    assert audited("columns", as_token_source(folder / "x.parquet")).problems == []


def test_two_sequences_that_are_swapped_are_named(audited, tokens):
    assert len(tokens[3]) == len(tokens[7])
    report = audited("plain", changed(tokens, i3=tokens[7], i7=tokens[3]), against=tokens)
    at = np.flatnonzero(tokens[3] != tokens[7])[0]
    found = {re.match(r"sequence (\d+), token (\d+): input_ids hold", problem).groups() for problem in report.problems}
    assert {("3", str(at)), ("7", str(at))} == found
    assert any(f"hold {tokens[7][at]} instead of {tokens[3][at]} and" in p for p in report.problems)


def test_one_token_that_differs_is_named_in_the_piece_that_has_it(audited, tokens):
    i = next(i for i, each in enumerate(tokens) if len(each) > LIMIT + 9)
    other = tokens[i].copy()
    other[LIMIT + 5] += 1
    (problem,) = audited("split", changed(tokens, **{f"i{i}": other}), against=tokens).problems
    assert problem.startswith(f"sequence {i}, token {LIMIT + 5}: input_ids hold {other[LIMIT + 5]} instead of ")
    assert re.search(r"\(bin at position \d+\)|\(a bin of the last step\)", problem)


def test_a_missing_tail_is_named(audited, tokens):
    problems = audited("plain", changed(tokens, i5=tokens[5][:-1])).problems
    assert any(problem.startswith("sequence 5: the plan says 20 tokens, the source holds 19") for problem in problems)
    problems = audited("plain", tokens[:-1]).problems
    assert any(f"no sequence with id {ROWS - 1}" in problem for problem in problems)


def test_tokens_that_hide_in_their_room_are_counted_and_found_against_the_right_ones(audited, tokens):
    assert len(tokens[4]) + 2 == 22  # a room of 24
    longer = changed(tokens, i4=np.append(tokens[4], 77))
    (problem,) = audited("roomy", longer).problems
    own = sum(min(len(each), 62) for each in tokens)
    assert problem.startswith(f"batches hold {own + 1:,} tokens of the source; the dataset was prepared from {own:,}")
    assert problem.spelled(lambda found: f"--{found.name}").endswith("prepared from (--against) to see where")
    problems = audited("roomy", longer, against=tokens).problems
    assert problems[0].startswith("sequence 4, token 20: input_ids hold 77 instead of 0")
    shorter = changed(tokens, i4=tokens[4][:-1])
    assert any(p.startswith("sequence 4, token 19: ") for p in audited("roomy", shorter, against=tokens).problems)


def test_a_tail_that_truncating_hides_is_counted(audited, tokens):
    i = next(i for i, each in enumerate(tokens) if len(each) > LIMIT)
    (problem,) = audited("head", changed(tokens, **{f"i{i}": np.append(tokens[i], [1, 2, 3])})).problems
    cut = sum(max(len(each) - LIMIT, 0) for each in tokens)
    assert problem.startswith(
        f"{cut + 3:,} tokens of the source were cut; the ledger of over-length sequences says {cut:,}"
    )


def test_ids_matched_by_another_column_are_found(audited, folder, tokens):
    wrong = as_token_source(folder / "x.parquet", id_column="other")
    right = as_token_source(folder / "x.parquet")
    problems = audited("columns", wrong, against=right).problems
    assert len(problems) > 3
    assert all(re.match(r"sequence 1\d\d\d(, token \d+)?: ", problem) for problem in problems[:10])


def test_sequences_that_never_come_are_named(audited, tokens):
    (problem,) = audited("plain", [*tokens, tokens[0], tokens[1]]).problems
    assert f"holds {ROWS + 2} sequences, but {ROWS} came: no batch holds the ids {ROWS}, {ROWS + 1}" in problem
    assert "the ids named have 40 tokens" in problem


def test_a_source_that_gathers_what_it_does_not_read_is_found(audited, tokens):
    class Wrong(IndexableSource):
        def gather(self, ids, lengths, out, out_starts, **options):
            super().gather(ids, lengths, out, out_starts, **options)
            for start in out_starts[ids == 8]:
                out[start + 2] = 5

    (problem,) = audited("plain", Wrong(tokens)).problems
    assert problem.startswith(f"sequence 8, token 2: input_ids hold 5 instead of {tokens[8][2]} (bin")


def test_a_loss_mask_that_differs_is_found(audited, tokens):
    mask = [each % 2 for each in tokens]
    other = changed(mask, i6=1 - mask[6])
    right = IndexableSource(mask)
    (problem,) = audited("plain", loss_mask=other, loss_against=right).problems
    assert problem.startswith("sequence 6, token 1: labels hold ")


SPOILT = {
    "padding": ("attention_mask", lambda t: t.__setitem__((0, -1), 1 - t[0, -1]), "attention_mask hold "),
    "a target across a boundary": ("labels", lambda t: t.__setitem__((0, 0), 9), ", token 0: labels hold 9 "),
    "a mixed-up sequence": ("sequence_ids", lambda t: t.__setitem__((1, 0), 3), ", token 0: sequence_ids hold 3 "),
    "positions that go on": ("position_ids", lambda t: t.add_(1), ", token 0: position_ids hold 1 "),
}


@pytest.mark.parametrize("fault", SPOILT)
def test_tensors_that_are_wrong_are_found(audited, monkeypatch, fault):
    name, spoil, said = SPOILT[fault]
    assemble = BatchMaker.assemble

    def spoilt(maker, bins):
        batch = assemble(maker, bins)
        spoil(batch[name])
        return batch

    monkeypatch.setattr(BatchMaker, "assemble", spoilt)
    assert said in audited("roomy").problems[0]


def test_many_differences_are_counted_and_few_named(audited, tokens):
    report = audited("plain", [each + 1 for each in tokens], against=tokens)
    assert report.differing > 30
    assert len(report.problems) == 11
    assert report.problems[-1] == f"{report.differing - 10:,} more sequences differ"


def test_batches_are_let_go_of(audited, monkeypatch):
    alive, most = [], 0
    assemble = BatchMaker.assemble

    def watched(maker, bins):
        nonlocal most
        batch = assemble(maker, bins)
        alive.append(weakref.ref(batch["input_ids"]))
        gc.collect(0)
        most = max(most, sum(ref() is not None for ref in alive))
        return batch

    monkeypatch.setattr(BatchMaker, "assemble", watched)
    assert audited("plain").problems == []
    assert len(alive) > 10
    assert most <= 2


def test_a_source_of_megatron_files(corpus, embedded, no_launcher):
    dataset = PackedDataset(lambda: embedded, "rows", MegatronSource(corpus.megatron), batch_size=4)
    info = embedded.get_dataset("rows")
    streams = EpochOfStreams(client=embedded, dataset=info, epoch=0, seed=0, topology=Topology(batch_size=4))
    report = TokenAudit(streams=streams, dataset=dataset).audit()
    assert (report.tokens, report.problems) == (info.own_tokens, [])
