"""Bins by position and steps explained: what they say is what streams deliver and sources hold."""

import json

import numpy as np
import pytest

from packhorse.client import Topology, connect
from packhorse.client.sources import IndexableSource, MegatronSource, TokenSourceError
from packhorse.pictures import draw_bins, explain_step
from packhorse.topology import Skips

RUN = {"epoch": 2, "seed": 5}


@pytest.fixture(params=["server", "embedded"])
def either(request):
    return request.getfixturevalue({"server": "client", "embedded": "embedded"}[request.param])


@pytest.mark.parametrize("balance", ["none", "optimizer-step"])
def test_a_step_is_explained_as_it_is_streamed(either, bins_of_stream, corpus, balance):
    topology = Topology(
        world_size=3, workers_per_rank=2, batch_size=4, start_position=8, accumulation=2, balance=balance
    )
    source = MegatronSource(corpus.megatron)
    for step, rank in ((0, 0), (1, 2), (3, 1)):
        explained = explain_step(
            either, "rows", step=step, rank=rank, topology=topology, tokens=source, skip=Skips.parse(["20:30"]), **RUN
        )
        with either.stream_bins(
            "rows", rank=rank, worker=step % 2, topology=topology, skip=Skips.parse(["20:30"]), **RUN
        ) as stream:
            num_steps = stream.header.num_steps
            delivered = [bin for bin in bins_of_stream(stream, 4, 2) if bin.step == step]
        assert explained.num_steps == num_steps
        assert [row.position for row in explained.rows] == [bin.position for bin in delivered]
        assert explained.ids == [i for bin in delivered for i in bin.ids]
        for row, bin in zip(explained.rows, delivered, strict=True):
            assert row.cost == sum(topology.cost_linear * n + n * n for n in bin.lengths)
            for sequence in row.sequences:
                tokens = corpus.sequences[sequence.id]
                assert sequence.length == sequence.room == len(tokens)
                assert sequence.first_tokens == tuple(tokens[:24].tolist())
                assert sequence.origin == f"row {sequence.id} of {corpus.megatron}.bin"


def test_what_was_found_goes_into_text_and_json(embedded, corpus):
    explained = explain_step(
        embedded,
        "rows",
        step=1,
        tokens=MegatronSource(corpus.megatron),
        decode=lambda tokens: "\n".join(f"<{token}>" for token in tokens),
        **RUN,
    )
    first = explained.rows[0].sequences[0]
    begin = " ".join(f"<{token}>" for token in corpus.sequences[first.id][:24].tolist())
    assert first.text == (begin if len(begin) <= 80 else begin[:79] + "…")
    shown = str(explained)
    assert f"id {first.id}, {first.length:,} tokens, " in shown
    assert repr(first.text) in shown
    facts = json.loads(json.dumps(explained.facts()))
    assert facts["bins"][0]["sequences"][0]["text"] == first.text
    assert [sequence["id"] for row in facts["bins"] for sequence in row["sequences"]] == explained.ids
    assert f"sequence 0: id {first.id}" in explained.picture().html()


def test_without_tokens_the_dataset_says_where_its_ids_come_from(either, corpus):
    (row,) = explain_step(either, "rows", step=0, **RUN).rows
    assert row.sequences[0].origin == f"row {row.sequences[0].id} of rows.parquet"
    assert row.sequences[0].length == row.sequences[0].room
    (row,) = explain_step(either, "named", step=0, **RUN).rows
    assert row.sequences[0].origin == f"id {row.sequences[0].id} of named.parquet"


def test_truncated_sequences_have_the_length_that_is_left(embedded, corpus):
    lengths = corpus.lengths("truncated")
    picture = draw_bins(embedded, "truncated", tokens=MegatronSource(corpus.megatron), positions=range(40), **RUN)
    seen = {sequence.id: sequence.length for row in picture.rows for sequence in row.sequences}
    assert max(seen.values()) == 96
    assert seen == {i: lengths[i] for i in seen}


@pytest.mark.parametrize(
    ("choice", "why"),
    [
        ({"step": 10_000}, r"step must be in \[0, \d+\), got 10000: .* the epoch has \d+ steps"),
        ({"step": -1}, "step must be at least 0, got -1"),
        ({"step": 0, "topology": Topology(mode="independent")}, "mode must be partition"),
    ],
)
def test_steps_that_there_are_not(embedded, choice, why):
    with pytest.raises(ValueError, match=why):
        explain_step(embedded, "rows", **choice)


def test_the_last_step_may_have_bins_of_no_position(embedded):
    topology = Topology(world_size=7, batch_size=9)
    num_bins = embedded.get_dataset("rows").num_bins
    step, num_left = topology.num_steps(num_bins) - 1, topology.num_tail_bins(num_bins)
    last = [explain_step(embedded, "rows", step=step, rank=rank, topology=topology) for rank in range(7)]
    names = [row.name for explained in last for row in explained.rows]
    assert 0 < names.count("added bin") == 7 * 9 - num_left


def test_another_source_is_refused_with_the_id(embedded):
    with pytest.raises(TokenSourceError, match=r"sequence \d+: the plan says"):
        explain_step(embedded, "rows", step=0, tokens=IndexableSource([np.arange(500)] * 2000))


def test_bins_are_drawn_in_the_order_asked_for(either):
    picture = draw_bins(either, "rows", positions=[9, 3], **RUN)
    block = either.get_bins("rows", positions=[9, 3], **RUN)
    assert [row.position for row in picture.rows] == [9, 3]
    assert [s.id for row in picture.rows for s in row.sequences] == block.ids.tolist()
    assert f"2 rows of 256 tokens: {len(block.ids)} sequences, " in str(picture)


def test_no_connection_outlives_an_explanation(corpus):
    with connect(f"embedded:{corpus.root}") as client:
        assert len(draw_bins(client, "few").rows) == client.get_dataset("few").num_bins
