"""What Prometheus scrapes, what reflection lists, and what health answers."""

import os
import socket
import threading
import urllib.error
import urllib.request

import grpc
import pyarrow as pa
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from prometheus_client.parser import text_string_to_metric_families
from tests.faulty_server import Faults

from packhorse.client import connect
from packhorse.client.errors import InvalidRequestError
from packhorse.dataset import MixtureDataset, MixtureFile, open_prepared
from packhorse.epoch.figures.waiting import idle_share, waiting_of, waiting_of_plan
from packhorse.prepare import Execution, InputColumns, Resource, prepare
from packhorse.server.watching import waiting as waiting_gauge
from packhorse.server.watching.metrics import (
    FILE_GAUGES,
    RESOURCE_GAUGE,
    Metrics,
    metric_names,
)
from packhorse.server.watching.waiting import MOST_RUNS, WAITING_GAUGE, WaitingGauge
from packhorse.topology import Balance, Topology
from packhorse.v1 import packing_pb2 as pb


@pytest.fixture(scope="module")
def server(corpus, make_server):
    with make_server(corpus.root, "--metrics-listen", "127.0.0.1:0") as server:
        yield server


@pytest.fixture
def scrape(server):
    def read():
        with urllib.request.urlopen(server.metrics_url, timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        return {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in families
            for sample in family.samples
        }

    return read


def test_metrics_follow_streams(server, scrape, wait_until):
    before = scrape()
    assert before["packhorse_active_streams", "StreamBins"] == 0
    sums = {"bins": 0, "sequences": 0, "tokens": 0}
    num_blocks = num_streams = 0
    with connect(server.target) as client:
        info = client.get_dataset("rows")
        for rank in range(2):
            num_streams += 1
            for block in client.stream_bins("rows", rank=rank, topology=Topology(world_size=2, batch_size=3)):
                num_blocks += 1
                sums["bins"] += len(block)
                sums["sequences"] += len(block.ids)
                sums["tokens"] += int(block.lengths.sum())
        num_resumed = len(list(client.stream_bins("truncated", first_step=2)))
        held = client.stream_bins("named")
        assert held.header.num_bins > 0
        with pytest.raises(InvalidRequestError):
            client.get_bins("rows", positions=[-1])
        with pytest.raises(InvalidRequestError):
            next(client.stream_bins("rows", rank=7))
        held.close()
    wait_until(lambda: scrape()["packhorse_active_streams", "StreamBins"] == 0)
    after = scrape()
    assert (sums["sequences"], sums["tokens"]) == (info.num_sequences, info.total_tokens)
    for what, total in sums.items():
        assert after[f"packhorse_{what}_streamed_total", "rows"] == total
    assert after["packhorse_errors_total", "INVALID_FIELD"] == 2
    assert after["packhorse_first_block_seconds_count",] >= num_streams
    assert after["packhorse_block_seconds_count",] >= num_blocks
    assert after["packhorse_streams_resumed_total", "truncated"] == 1
    assert num_resumed > 0
    assert after["packhorse_flow_control_seconds_total", "rows"] >= 0
    assert after["packhorse_flow_control_streams", "StreamBins"] == after["packhorse_rank_lag_steps", "rows"] == 0
    of_streams = ("streams", "small-blocks")
    assert sum(after["packhorse_lane_wait_seconds_count", lane] for lane in of_streams) >= num_blocks - num_streams
    assert {after["packhorse_lane_waiting", lane] for lane in (*of_streams, "answers", "packing", "searching")} == {0}
    assert after["packhorse_first_block_seconds_bucket", "+Inf"] == after["packhorse_first_block_seconds_count",]
    assert 0 < after["packhorse_first_block_seconds_sum",] < 60

    names = {key[0] for key in after}
    none_here = {*FILE_GAUGES, RESOURCE_GAUGE, "packhorse_run_digest"}  # no file is wrong, and no stream says its run
    for name in metric_names() - none_here:
        assert name in names or {f"{name}_bucket", f"{name}_count", f"{name}_sum"} <= names, name
    known = metric_names() | {
        f"{name}_{part}" for name in metric_names() for part in ("bucket", "count", "sum", "created")
    }
    known |= {name.removesuffix("_total") + "_created" for name in metric_names()}
    assert {name for name in names if name.startswith("packhorse")} <= known


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.shelf
def test_the_port_answers_few_paths_and_says_which(server):
    root = server.metrics_url.removesuffix("/metrics")
    assert get(f"{root}/healthz") == (200, "SERVING\n")
    for path in ("/metric", "/metrics/", "/healthz/x", "/favicon.ico", "/..%2fmetrics"):
        assert get(root + path) == (404, "here are /metrics, for Prometheus, /healthz, /status\n")
    request = urllib.request.Request(f"{root}/healthz", method="HEAD")
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert (answer.status, answer.read()) == (200, b"")


@pytest.mark.realtime
def test_the_process_is_measured(server, scrape, wait_until):
    wait_until(lambda: scrape()["packhorse_memory_bytes",] > 0)
    before = scrape()
    assert before["packhorse_serving",] == 1
    assert 10 << 20 < before["packhorse_memory_bytes",] < before["packhorse_memory_limit_bytes",]
    assert 5 < before["packhorse_open_files",] < before["packhorse_open_files_limit",]
    assert before["packhorse_processor_seconds_total",] > 0
    host, port = server.target.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as silent, connect(server.target) as client:
        client.get_dataset("rows")
        silent.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        wait_until(lambda: scrape()["packhorse_connections_without_request",] >= 1)
        wait_until(lambda: scrape()["packhorse_connections",] >= 2)
        after = scrape()
        assert after["packhorse_bytes_without_request_total",] >= before["packhorse_bytes_without_request_total",] + 24
    wait_until(lambda: scrape()["packhorse_connections_without_request",] == 0)


def test_grpc_s_own_metrics_have_the_names_of_its_proposal(server, scrape, wait_until):
    """GRFC A66."""
    method = "packhorse.v1.PackingService/GetBins"
    before = scrape()
    with connect(server.target) as client:
        client.get_bins("rows", positions=[0, 1, 2])
        with pytest.raises(InvalidRequestError):
            client.get_bins("rows", positions=[-1])
    wait_until(lambda: scrape().get(("grpc_server_call_started_total", method), 0) >= 2)
    after = scrape()

    def grown(name, *labels):
        return after[name, *labels] - before.get((name, *labels), 0)

    assert grown("grpc_server_call_started_total", method) == 2
    for status in ("OK", "INVALID_ARGUMENT"):
        labels = sorted((method, status))
        assert grown("grpc_server_call_duration_seconds_count", *labels) == 1
        assert 0 < grown("grpc_server_call_duration_seconds_sum", *labels) < 10
        assert grown("grpc_server_call_rcvd_total_compressed_message_size_bytes_sum", *labels) > 0
    assert grown("grpc_server_call_sent_total_compressed_message_size_bytes_sum", *sorted((method, "OK"))) > 12
    assert grown("grpc_server_call_sent_total_compressed_message_size_bytes_sum", "INVALID_ARGUMENT", method) == 0


def test_block_seconds_count_blocks_and_not_headers(server, scrape, wait_until):
    wait_until(lambda: scrape()["packhorse_active_streams", "StreamBins"] == 0)
    before = scrape()["packhorse_block_seconds_count",]
    with connect(server.target) as client:
        num_blocks = sum(len(list(client.stream_bins("rows", seed=seed))) for seed in range(3))
    wait_until(lambda: scrape()["packhorse_active_streams", "StreamBins"] == 0)
    assert scrape()["packhorse_block_seconds_count",] - before == num_blocks


def test_dataset_gauges_state_the_plan(server, scrape, corpus):
    samples = scrape()
    with connect(server.target) as client:
        infos = client.list_datasets()
    assert [info.name for info in infos] == ["few", "named", "rows", "truncated"]
    for info in infos:
        capacity = info.num_bins * info.max_seq_len
        for name, value in {
            "packing_efficiency_ratio": info.total_tokens / capacity,
            "real_token_ratio": open_prepared(corpus.root / info.name).manifest.own_tokens / capacity,
            "padding_tokens": capacity - info.total_tokens,
            "lower_bound_gap_ratio": (info.num_bins - info.lower_bound) / info.lower_bound,
            "bins": info.num_bins,
            "sequences": info.num_sequences,
        }.items():
            assert samples[f"packhorse_dataset_{name}", info.name] == pytest.approx(value)


def test_the_gauge_of_a_resource_says_how_full_bins_are(tmp_path):
    table = pa.table({"n": [5, 6, 7, 8], "tiles": [1, 2, 0, 3]})
    tiles = (Resource(name="tiles", column="tiles", cap=4), Resource(name="frames", column="tiles"))
    columns = InputColumns(length="n", resources=tiles)
    quiet = Execution(progress=False)
    manifest = prepare(lengths=table, max_seq_len=16, columns=columns, execution=quiet, output=tmp_path / "vl")
    registry = Metrics(lambda: [open_prepared(tmp_path / "vl")]).registry
    labels = {"dataset": "vl", "resource": "tiles"}
    assert registry.get_sample_value("packhorse_dataset_resource_ratio", labels) == 6 / (4 * manifest.num_bins)
    assert registry.get_sample_value("packhorse_dataset_resource_ratio", {**labels, "resource": "frames"}) is None


def test_a_pack_stream_that_waits_for_its_client_is_no_stream_that_wants_a_block(server, scrape, wait_until):
    with connect(server.target) as client, client.pack_stream(max_seq_len=16) as stream:
        stream.send(ids=[1], lengths=[7])
        samples = wait_until(lambda: (found := scrape())["packhorse_active_streams", "PackStream"] and found)
        assert samples["packhorse_active_streams", "StreamBins"] == 0
    wait_until(lambda: scrape()["packhorse_active_streams", "PackStream"] == 0)


def test_active_streams_count_those_that_are_open(server, scrape, wait_until, corpus):
    with connect(server.target) as client:
        streams = [client.stream_bins("rows", seed=seed) for seed in range(3)]
        for stream in streams:
            next(stream)
        del stream, streams  # abandoned without a word
    wait_until(lambda: scrape()["packhorse_active_streams", "StreamBins"] == 0)


def test_reflection_describes_the_service(server):
    with grpc.insecure_channel(server.target) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert "packhorse.v1.PackingService" in database.get_services()
        assert "grpc.health.v1.Health" in database.get_services()
        file = database.FindFileContainingSymbol("packhorse.v1.PackingService")
        assert {method.name for method in file.service[0].method} == set(
            pb.DESCRIPTOR.services_by_name["PackingService"].methods_by_name
        )


@pytest.mark.parametrize("service", ["", "packhorse.v1.PackingService"])
def test_health_serves(server, service):
    with grpc.insecure_channel(server.target) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.realtime
def test_health_turns_while_no_block_can_be_made(corpus, make_server, tmp_path, wait_until):
    faults = Faults(probe_seconds=0.2, blocks_stuck_while=str(tmp_path / "stuck"))
    with make_server(corpus.root, faults=faults) as server, grpc.insecure_channel(server.target) as channel:

        def status(service="packhorse.v1.PackingService"):
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=10, wait_for_ready=True
            )
            return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)

        assert status() == "SERVING"
        (tmp_path / "stuck").touch()
        with connect(server.target) as client:
            streams = [client.stream_bins("rows", seed=seed) for seed in range(2 * os.cpu_count())]
            threads = [threading.Thread(target=next, args=(stream,)) for stream in streams]
            for thread in threads:
                thread.start()
            wait_until(lambda: status() == "NOT_SERVING")
            assert status("") == "NOT_SERVING", "a restart may help"
            (tmp_path / "stuck").unlink()
            wait_until(lambda: status() == "SERVING")
            for thread in threads:
                thread.join(20)


@pytest.fixture
def opened(corpus):
    return [open_prepared(corpus.root / name) for name in ("rows", "named")]


@pytest.fixture
def gauge(opened):
    return WaitingGauge(lambda: opened)


@pytest.fixture
def measured(monkeypatch):
    """What was measured, in order."""
    calls = []

    def measuring(*arguments):
        calls.append(arguments[1])
        return waiting_of_plan(*arguments)

    monkeypatch.setattr(waiting_gauge, "waiting_of_plan", measuring)
    return calls


def samples(gauge):
    (family,) = gauge.collect()
    assert family.name == WAITING_GAUGE
    return [(sample.labels, sample.value) for sample in family.samples]


@pytest.mark.parametrize("balance", Balance)
def test_it_states_what_the_plan_makes_ranks_wait(gauge, opened, balance):
    topology = Topology(world_size=4, batch_size=2, accumulation=3, balance=balance, cost_linear=9)
    gauge.remember(opened[0], topology)
    expected = waiting_of_plan(opened[0].plan, topology)[balance]
    labels = {
        "dataset": "rows",
        "world_size": "4",
        "batch_size": "2",
        "accumulation": "3",
        "balance": balance.value,
    }
    assert samples(gauge) == [
        ({**labels, "wait": "step"}, idle_share(expected.at_steps)),
        ({**labels, "wait": "optimizer-step"}, idle_share(expected.at_optimizer_steps)),
    ]


def test_a_stream_measures_nothing_and_scrapes_measure_once(gauge, opened, measured):
    for _ in range(3):
        gauge.remember(opened[0], Topology(world_size=4))
    assert not measured
    assert len(samples(gauge)) == len(samples(gauge)) == 2
    gauge.remember(opened[0], Topology(world_size=4, workers_per_rank=8, start_position=5))  # the same run, elsewhere
    samples(gauge)
    assert len(measured) == 1
    gauge.remember(opened[0], Topology(world_size=4, cost_linear=1))
    samples(gauge)
    assert [topology.cost_linear for topology in measured] == [24_576, 1]


def test_the_runs_that_streamed_last_are_remembered(gauge, opened):
    for world_size in range(2, 2 + MOST_RUNS):
        gauge.remember(opened[0], Topology(world_size=world_size))
    gauge.remember(opened[0], Topology(world_size=2))
    gauge.remember(opened[0], Topology(world_size=99))
    kept = {int(labels["world_size"]) for labels, _ in samples(gauge)}
    assert kept == {2, *range(4, 2 + MOST_RUNS), 99}


def test_runs_go_with_their_dataset(gauge, opened):
    for dataset in opened:
        gauge.remember(dataset, Topology(world_size=2))
    assert {labels["dataset"] for labels, _ in samples(gauge)} == {"rows", "named"}
    del opened[0], dataset
    assert {labels["dataset"] for labels, _ in samples(gauge)} == {"named"}


def test_who_cannot_wait_is_not_shown(gauge, opened):
    gauge.remember(opened[0], Topology(world_size=1, accumulation=4))
    gauge.remember(opened[0], Topology(world_size=1 << 16, accumulation=4))  # more bins than the epoch has
    gauge.remember(opened[0], Topology(world_size=1 << 20, accumulation=4))  # more than can be balanced
    assert samples(gauge) == []


def test_each_size_of_a_schedule_is_a_run(opened):
    dataset, schedule = opened[0], "0:8 40:16 100:32 1000000:64"
    shape = {"world_size": 4, "accumulation": 2, "balance": Balance.MICRO_STEP}
    sizes_of = {0: [1, 2, 4], 60: [2, 4], 100: [4]}  # from this position on; the epoch never comes to the last stage
    assert dataset.manifest.num_bins < 1_000_000
    for position, sizes in sizes_of.items():
        own = WaitingGauge(lambda: opened)
        topology = Topology(batch_schedule=schedule, start_position=position, **shape)
        own.remember(dataset, topology.of_epoch(0, num_bins=dataset.manifest.num_bins, max_seq_len=256))
        found = {(int(labels["batch_size"]), labels["wait"]): value for labels, value in samples(own)}
        assert sorted({size for size, _ in found}) == sizes
        for size in sizes:
            plain = waiting_of_plan(dataset.plan, Topology(batch_size=size, **shape))[Balance.MICRO_STEP]
            assert found[size, "step"] == idle_share(plain.at_steps)
            assert found[size, "optimizer-step"] == idle_share(plain.at_optimizer_steps)


def test_a_long_schedule_leaves_the_size_that_a_run_has_now(gauge, opened):
    gauge.remember(opened[1], Topology(world_size=2))
    stages = " ".join(f"{2 * number}:{2 * number + 2}" for number in range(3 * MOST_RUNS))
    for topology in (Topology(world_size=2, batch_schedule=stages), Topology(world_size=4)):
        gauge.remember(opened[0], topology)
    found = {(labels["dataset"], int(labels["world_size"]), int(labels["batch_size"])) for labels, _ in samples(gauge)}
    assert {("rows", 2, 1), ("rows", 4, 1)} <= found
    assert len(found) <= MOST_RUNS


def test_a_mixture_is_measured_under_its_last_stage(corpus, gauge, opened):
    stages = "[[stages]]\nuntil_bins = 65\nweights = {rows = 1}\n[[stages]]\nweights = {rows = 1, named = 1}"
    text = f"epoch_bins = 64\n{stages}"
    mixture = MixtureDataset("mixed", MixtureFile.parse(text, "mixed"), opened)
    topology = Topology(world_size=4, batch_size=2)
    gauge.remember(mixture, topology)
    expected = waiting_of(mixture.epoch(2, seed=0), topology)[topology.balance]
    values = [(labels["dataset"], labels["wait"], value) for labels, value in samples(gauge)]
    assert values == [
        ("mixed", "step", idle_share(expected.at_steps)),
        ("mixed", "optimizer-step", idle_share(expected.at_optimizer_steps)),
    ]
    opened.pop()
    assert not samples(gauge)
