"""What a server tells of its open streams, and how far the slowest rank is behind."""

import pytest
from tests.waiting import time_with

from packhorse.client import Access, connect
from packhorse.client.errors import AccessDeniedError, ServerUnavailableError
from packhorse.proof import ask_activity
from packhorse.server.access.bearer_tokens import Grant, hash_of, new_token
from packhorse.server.watching import activity as activity_module
from packhorse.server.watching.activity import Activity
from packhorse.server.watching.calls import Call
from packhorse.server.watching.metrics import Metrics, values_of
from packhorse.topology import Topology
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import EpochKey, steps_of_ranks

STREAM_BINS = "packhorse.v1.PackingService/StreamBins"


def call_of(rank, *, dataset="corpus", worker=0, first_step=0, workers=1):
    topology = pb.Topology(world_size=4, workers_per_rank=workers, batch_size=2)
    request = pb.StreamBinsRequest(
        dataset=dataset, rank=rank, worker=worker, topology=topology, first_step=first_step, seed=9, epoch=1
    )
    return Call(STREAM_BINS, request=request)


def block(first_step, num_steps):
    return pb.StreamBinsResponse(block=pb.StreamBlock(first_step=first_step, num_steps=num_steps))


@pytest.fixture
def now(monkeypatch):
    """The time, as a list of one."""
    now = [100.0]
    monkeypatch.setattr(activity_module, "time", time_with(perf_counter=lambda: now[0]))
    return now


def test_an_independent_worker_takes_every_step_of_its_own_epoch():
    activity = Activity(Metrics(list), "", 1)
    call = call_of(0, worker=1, workers=2)
    call.request.topology.mode = pb.STREAM_MODE_INDEPENDENT
    activity.sent(call, block(0, 3), 0.0)  # steps 0, 1, 2
    (stream,) = activity.answer().streams
    assert stream.next_step == 3


def test_streams_are_listed_while_they_are_open_with_the_step_that_comes_next(now):
    activity = Activity(Metrics(list), "1.2", max_streams=7)
    call = call_of(3, worker=1, first_step=5, workers=2)
    assert not activity.answer().streams
    activity.sent(call, pb.StreamBinsResponse(header=pb.StreamHeader(num_steps=50)), 0.0)
    activity.sent(call, block(5, 3), 0.5)  # steps 5, 7, 9
    call.sending_since, call.blocked_seconds, call.began = 98.0, 0.5, 90.0
    now[0] += 1
    (stream,) = activity.answer().streams
    assert (stream.rank, stream.worker, stream.world_size, stream.seed, stream.epoch) == (3, 1, 4, 9, 1)
    assert (stream.first_step, stream.next_step, stream.num_steps) == (5, 11, 50)
    assert (stream.open_seconds, stream.blocked_seconds, stream.waiting_seconds) == (11.0, 0.5, 3.0)
    assert stream.id == call.id
    activity.ended(call)
    now[0] += 1
    answer = activity.answer()
    assert not answer.streams
    assert (answer.server_version, answer.max_streams, answer.uptime_seconds, answer.num_processes) == (
        "1.2",
        7,
        2.0,
        1,
    )


def test_an_answer_is_made_anew_only_now_and_then(now):
    activity = Activity(Metrics(list), "", 1)
    first = activity.answer()
    assert activity.answer() is first
    now[0] += 2 * activity_module.FRESH_SECONDS
    assert activity.answer() is not first


def test_the_lag_is_that_of_the_slowest_worker_of_the_slowest_rank(now):
    metrics = Metrics(list)
    activity = Activity(metrics, "", 10)
    calls = [call_of(rank, worker=worker, workers=2) for rank in range(2) for worker in range(2)]
    for call, first_step in zip(calls, (40, 41, 30, 7), strict=True):
        activity.sent(call, block(first_step, 1), 0.0)
    other = call_of(0, dataset="books")
    now[0] += 2
    activity.sent(other, block(1000, 1), 0.0)
    assert values_of(metrics.rank_lag) == {("corpus",): 40 - 9, ("books",): 0}
    for call in (*calls, other):
        activity.ended(call)
    assert values_of(metrics.rank_lag) == {("corpus",): 0, ("books",): 0}


def test_ranks_at_the_same_step_do_not_lag_where_one_is_sent_its_next_block_first(now):
    metrics = Metrics(list)
    activity = Activity(metrics, "", 10)
    ahead, resumed = call_of(0), call_of(1, first_step=2048)
    for call, first_step in ((ahead, 0), (resumed, 2048), (ahead, 4096)):
        now[0] += 2
        activity.sent(call, block(first_step, 4096), 0.0)
        assert values_of(metrics.rank_lag) == {("corpus",): 0}
    now[0] += 2
    activity.sent(ahead, block(8192, 4096), 0.0)
    assert values_of(metrics.rank_lag) == {("corpus",): 8192 - 6144}


def test_runs_are_told_apart():
    streams = [
        pb.StreamActivity(dataset=dataset, seed=seed, rank=rank, world_size=2, next_step=step)
        for dataset, seed, rank, step in (("a", 0, 0, 5), ("a", 0, 1, 3), ("a", 1, 0, 9), ("b", 0, 0, 1), ("", 0, 0, 1))
    ]
    assert steps_of_ranks(streams) == {
        EpochKey("a", 0, 0, 2): {0: 5, 1: 3},
        EpochKey("a", 0, 1, 2): {0: 9},
        EpochKey("b", 0, 0, 2): {0: 1},
    }


@pytest.fixture(scope="module")
def guarded(corpus, make_server, tmp_path_factory):
    """(server, tokens by name) of a server that wants tokens."""
    folder = tmp_path_factory.mktemp("activity")
    tokens = {name: new_token() for name in ("all", "rows", "bins")}
    scopes = {"all": {}, "rows": {"datasets": ("rows",)}, "bins": {"methods": ("StreamBins",)}}
    (folder / "tokens").write_text(
        "".join(f"{Grant(name, hash_of(token), **scopes[name])}\n" for name, token in tokens.items())
    )
    for name, token in tokens.items():
        (folder / name).write_text(token)
    with make_server(corpus.root, "--token-file", folder / "tokens") as server:
        yield server, folder


def test_a_server_tells_of_open_streams_to_whom_they_belong(guarded, wait_until):
    server, folder = guarded

    def streams_seen_by(name):
        (activity,) = ask_activity(server.target, access=Access(token_file=folder / name))
        return sorted(stream.dataset for stream in activity.streams), activity

    with connect(server.target, token_file=folder / "all") as client, client.pack_stream(8) as packing:
        packing.send([1], [3])
        held = [client.stream_bins(name, topology=Topology(world_size=2, batch_size=2)) for name in ("rows", "named")]
        blocks = [next(stream) for stream in held]
        # What is left of so small an epoch may have left by now, and its streams with it.
        wait_until(lambda: "" in streams_seen_by("all")[0])
        names, activity = streams_seen_by("rows")
        assert set(names) <= {"rows"}
        assert set(activity.sent) == {"rows"}
        num_bins, num_sequences, num_tokens = activity.sent["rows"]
        assert num_bins >= len(blocks[0])
        assert num_tokens >= num_sequences >= len(blocks[0].ids)
        assert set(streams_seen_by("all")[1].sent) == {"rows", "named"}
        with pytest.raises(AccessDeniedError, match="is not for GetActivity"):
            streams_seen_by("bins")


def test_a_server_that_does_not_answer():
    with pytest.raises(ServerUnavailableError):
        ask_activity("127.0.0.1:9", timeout_seconds=0.2)


def test_every_process_behind_one_port_is_asked(corpus, make_server, wait_until):
    with make_server(corpus.root, "--processes", 2, "--max-streams", 64) as server:
        activities = wait_until(lambda: (found := ask_activity(server.target)) and len(found) == 2 and found)
        assert len({activity.process for activity in activities}) == 2
        assert {(activity.num_processes, activity.max_streams) for activity in activities} == {(2, 64)}
        clients = [connect(server.target) for _ in range(8)]  # a connection each, which the kernel deals out
        held = [client.pack_stream(8) for client in clients]
        for packing in held:
            packing.send([1], [3])
        wait_until(lambda: sum(len(activity.streams) for activity in ask_activity(server.target)) == len(held))
        for client in clients:
            client.close()
