"""`packhorse bench`: what every stream of a run felt, and whether one failed."""

import json

import numpy as np
import pytest
from tests.flat_words import prepare

from packhorse.client import Access
from packhorse.proof.commands.bench import _facts, _lines
from packhorse.proof.load import Load, Measured, _read
from packhorse.topology import Topology

LOAD = Load(
    target="a:1",
    access=Access(),
    dataset="corpus",
    seed=0,
    topology=Topology(world_size=2, workers_per_rank=2, batch_size=4),
    seconds=10.0,
    steps_per_second=None,
)


def test_every_rank_and_worker_has_a_stream_and_is_measured(packhorse, target):
    result = packhorse(
        *("bench", "rows", "--target", target, "--seconds", 1, "--world-size", 2, "--workers-per-rank", 2),
        *("--processes", 2, "--json"),
    )
    facts = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (facts["streams"], facts["failed_streams"], facts["first_error"]) == (4, 0, None)
    first, following = facts["first_block_seconds"], facts["next_block_seconds"]
    assert first["count"] >= 4  # each epoch is opened anew
    assert following["count"] > 0
    for found in (first, following):
        assert 0 < found["p50"] <= found["p90"] <= found["p99"] <= found["max"] < 60
    assert facts["tokens_per_second"] > facts["ids_per_second"] > facts["bins_per_second"] > 0
    assert 0 < facts["slowest_over_median"] <= 1
    assert facts["seconds"] >= 1


def test_numbers_are_those_of_all_streams():
    streams = [Measured([0.001 * number], [0.1], 10, 100 * number, 1_000, 2.0) for number in range(1, 5)]
    facts = _facts(LOAD, streams, 3.8, 2)
    assert (facts["ids_per_second"], facts["tokens_per_second"], facts["bins_per_second"]) == (500, 2_000, 20)
    assert facts["slowest_over_median"] == 0.4
    assert facts["first_block_seconds"]["p50"] == pytest.approx(0.0025)
    text = "\n".join(_lines(facts))
    assert "4 streams of corpus (2 ranks × 2 workers, 4 bins a step) for 2.0 s" in text
    assert "it, and not the server, may be the limit" in text
    assert "may be the limit" not in "\n".join(_lines(_facts(LOAD, streams, 0.1, 2)))


def test_a_stream_that_fails_fails_the_bench():
    facts = _facts(LOAD, [Measured(error="it is full"), Measured([0.1], [], 1, 1, 1, 1.0)], 0.1, 2)
    assert (facts["failed_streams"], facts["first_error"], facts["next_block_seconds"]) == (1, "it is full", None)
    assert "1 streams: it is full" in "\n".join(_lines(facts))


def test_streams_beyond_the_limit_are_counted_and_told(packhorse, make_server, tmp_path):
    """Of an epoch so long, and read so slowly, that the server has not sent a stream's end when the bench is over."""
    prepare(lengths=np.full(1_000_000, 7), output=tmp_path / "long", max_seq_len=7, progress=False)
    with make_server(tmp_path, "--max-streams", 2) as server:
        bench = (
            "bench",
            "--target",
            server.target,
            "--seconds",
            1,
            "--world-size",
            5,
            "--processes",
            1,
            "--steps-per-second",
            1,
        )
        result = packhorse(*bench, "--json")
        facts = json.loads(result.stdout)
    assert (result.exit_code, facts["streams"], facts["refused_streams"], facts["failed_streams"]) == (1, 5, 3, 3)
    assert facts["first_error"] == "it was never admitted"
    assert facts["first_block_seconds"]["count"] == 2


def test_the_way_out_of_a_refusal_is_told():
    refused, let_in = Measured(was_refused=True, error="it was never admitted"), Measured([0.1], [], 1, 1, 1, 1.0)
    text = "\n".join(_lines(_facts(LOAD, [refused, let_in], 0.1, 2)))
    assert "refused      1 streams at first: servers were full: raise --max-streams" in text
    assert "refused" not in "\n".join(_lines(_facts(LOAD, [let_in], 0.1, 2)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--target", "embedded:datasets"], "is not a server"), (["none"], "no dataset is named 'none'")],
)
def test_what_cannot_be_loaded(packhorse, target, arguments, message):
    result = packhorse("bench", *([] if arguments[0].startswith("-") else ["--target", target]), *arguments)
    assert result.exit_code != 0
    assert message in result.stderr


def test_a_stream_that_ends_by_a_fault_of_the_bench_is_no_stream_that_was_well(monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no idea")

    monkeypatch.setattr("packhorse.proof.load.connect", fail)
    measured = Measured()
    with pytest.raises(RuntimeError):
        _read(LOAD, rank=0, worker=0, began=0.0, measured=measured)
    assert measured.error == "RuntimeError: no idea"
