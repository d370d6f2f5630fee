"""`packhorse top`: rates, ranks that lag behind, and what is shown of them."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from packhorse.analysis import activity_between
from packhorse.client import connect
from packhorse.proof import ServerActivity, StreamActivity
from packhorse.proof.commands.top import _number, _time, view_of

STREAM = StreamActivity(
    id="a",
    method="StreamBins",
    dataset="corpus",
    epoch=2,
    seed=1,
    rank=0,
    worker=0,
    world_size=2,
    batch_size=4,
    first_step=0,
    next_step=100,
    num_steps=900,
    num_messages=9,
    sent_bytes=5_000,
    open_seconds=10.0,
    blocked_seconds=4.0,
    waiting_seconds=0.0,
    peer="ipv4:10.0.0.7:1",
)
SERVER = ServerActivity(
    address="a:1",
    process=7,
    num_processes=1,
    server_version="0.1",
    uptime_seconds=20.0,
    max_streams=512,
    streams=(STREAM, replace(STREAM, id="b", rank=1, next_step=40)),
    waiting_in_lanes={"streams": 3, "answers": 0},
    sent={"corpus": (100, 1_000, 20_000)},
)
LATER = replace(
    SERVER,
    uptime_seconds=22.0,
    streams=(
        replace(STREAM, next_step=140, sent_bytes=9_000, open_seconds=12.0, blocked_seconds=5.0),
        replace(STREAM, id="b", rank=1, next_step=50, open_seconds=12.0, waiting_seconds=2.0),
    ),
    sent={"corpus": (150, 1_500, 30_000), "books": (22, 44, 66)},
)


def test_rates_are_those_since_the_look_before():
    facts = activity_between([SERVER], [LATER], 2.0)
    behind, ahead = facts["streams"]  # the slowest first
    assert (behind["id"], behind["behind_steps"], behind["steps_per_second"]) == ("b", 90, 5.0)
    assert behind["blocked_share"] == 1.0  # it waited all the time
    assert (ahead["id"], ahead["behind_steps"], ahead["steps_per_second"], ahead["bytes_per_second"]) == (
        "a",
        0,
        20,
        2_000,
    )
    assert ahead["blocked_share"] == 0.5
    (run,) = facts["runs"]
    assert (run["dataset"], run["epoch"], run["open_ranks"], run["world_size"]) == ("corpus", 2, 2, 2)
    assert (run["furthest_step"], run["slowest_step"], run["slowest_rank"], run["lag_steps"]) == (140, 50, 1, 90)
    books, corpus = facts["datasets"]
    assert (corpus["bins_per_second"], corpus["sequences_per_second"], corpus["tokens_per_second"]) == (25, 250, 5_000)
    assert books["bins_per_second"] == 11  # first streamed since the look before


def test_what_was_not_there_before_has_its_rate_since_it_began():
    facts = activity_between([], [SERVER], 0.0)
    assert facts["streams"][1]["steps_per_second"] == 10
    assert facts["datasets"][0]["tokens_per_second"] == 1_000


def test_what_a_process_takes_is_shown_in_eighty_columns():
    taking = replace(
        SERVER,
        processor_seconds=30.0,
        memory_bytes=151_000_000,
        memory_limit_bytes=2_000_000_000,
        open_files=4_096,
        most_open_files=65_536,
        num_connections=4_000,
        num_connections_without_request=16,
        bytes_without_request=10**9,
        address="127.0.0.1:50051",
    )
    later = replace(taking, processor_seconds=33.0, bytes_without_request=2 * 10**9)
    facts = activity_between([taking], [later], 2.0)
    assert facts["servers"][0]["processors"] == 1.5
    assert facts["servers"][0]["bytes_without_request_per_second"] == 5e8
    text = shown(facts, width=80)
    (line,) = (line for line in text.splitlines() if "151M of 2.0G" in line)
    assert line.split() == [
        "127.0.0.1:50051",
        "1.5",
        *["151M", "of", "2.0G"],
        *["4.1k", "of", "66k"],
        "4,000",
        "16",
        "500M",
    ]
    assert "cores" not in shown(activity_between([SERVER], [LATER], 2.0)), "an older server does not say"


def test_streams_and_runs_are_counted_for_each_digest():
    digest = "0123456789abcdef-0123456789abcdef-0123456789abcdef-0123456789abcdef"
    streams = [replace(STREAM, id=str(seed), seed=seed, digest=digest) for seed in (1, 1, 2)]
    streams += [replace(STREAM, id="old", digest="older"), replace(STREAM, id="none")]
    facts = activity_between([], [replace(SERVER, streams=tuple(streams))], 0.0)
    assert facts["digests"] == [
        {"dataset": "corpus", "digest": digest, "streams": 3, "runs": 2},
        {"dataset": "corpus", "digest": "older", "streams": 1, "runs": 1},
    ]
    assert digest in shown(facts)
    assert digest in "".join(line.split()[-1] for line in shown(facts, width=80).splitlines() if line.split())


def test_the_ranks_of_a_run_may_stream_from_several_servers():
    first, second = STREAM, replace(STREAM, id="c", rank=1, next_step=10)
    servers = [replace(SERVER, streams=(first,)), replace(SERVER, process=8, address="b:1", streams=(second,))]
    facts = activity_between([], servers, 0.0)
    assert [(run["lag_steps"], run["open_streams"]) for run in facts["runs"]] == [(90, 2)]
    assert facts["datasets"][0]["tokens_per_second"] == 2_000


def shown(facts, limit=10, trouble="", width=160):
    written = io.StringIO()
    Console(width=width, file=written).print(view_of(facts, limit, trouble))
    return written.getvalue()


def test_the_view_shows_the_slowest_and_counts_the_rest():
    text = shown(activity_between([SERVER], [LATER], 2.0), limit=1)
    assert "streams 3" in text
    assert "140 of 900" in text
    assert "and 1 more; --limit shows them" in text
    assert "unreachable" in shown(activity_between([], [SERVER], 0.0), trouble="unreachable")
    assert "a:1" in shown(activity_between([], [replace(SERVER, streams=(), sent={})], 0.0))


def test_a_packing_stream_has_no_rank():
    stream = replace(STREAM, method="PackStream", dataset="", rank=0, num_steps=0)
    facts = activity_between([], [replace(SERVER, streams=(stream,))], 0.0)
    assert facts["runs"] == []
    assert facts["streams"][0]["behind_steps"] == 0
    assert "PackStream" in shown(facts)


def test_numbers_and_times_are_short():
    assert [_number(value) for value in (0, 3.14159, 812, 45_600, 3.2e9)] == ["0", "3.1", "812", "46k", "3.2G"]
    assert [_time(value) for value in (0.0, 0.25, 42, 150, 9_000, 200_000)] == [
        *("0", "0.2 s", "42 s", "2.5 min", "2.5 h", "2.3 d")
    ]


def test_once_prints_tables_or_json(packhorse, target):
    with connect(target) as client:
        digest = client.get_dataset("rows").digest
        stream = client.stream_bins("rows")
        next(stream)
        result = packhorse("top", "--target", target, "--once", "--interval", "0.1", "--json")
        stream.close()
    facts = json.loads(result.stdout)
    assert facts["servers"][0]["memory_bytes"] > 0
    assert facts["digests"] in ([], [{"dataset": "rows", "digest": digest, "streams": 1, "runs": 1}])  # it may be over
    assert facts["servers"][0]["address"] == target
    assert "rows" in {each["dataset"] for each in facts["datasets"]}
    result = packhorse("top", "--target", target, "--once", "--interval", "0.1")
    assert result.exit_code == 0
    assert target in result.stdout


def test_a_replica_that_is_away_hides_none_of_the_others(packhorse, target):
    result = packhorse("top", "--target", f"127.0.0.1:9,{target}", "--once", "--interval", "0.1")
    assert result.exit_code == 1
    assert target in result.stdout
    assert "no answer from 127.0.0.1:9: UNAVAILABLE" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "embedded:datasets"], "embedded:DIR is not a server"),
        (["--json"], "--json needs --once"),
        (
            ["--target", "127.0.0.1:9", "--once"],
            "Connection refused; `packhorse doctor --target 127.0.0.1:9` tries every step to it",
        ),
    ],
)
def test_what_cannot_be_watched(packhorse, arguments, message):
    result = packhorse("top", *arguments)
    assert result.exit_code != 0
    assert message in result.stderr
