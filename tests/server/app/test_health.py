"""Health tells the truth: about the event loop, a look-up and a block, whatever stands in the place of a file."""

import asyncio
import os
import shutil
import signal
import threading
import urllib.error
import urllib.request

import grpc
import numpy as np
import pytest
from click.testing import CliRunner
from grpc_health.v1 import health_pb2, health_pb2_grpc

from packhorse.cli import main
from packhorse.client import connect
from packhorse.client.errors import DatasetCorruptError, TokensNotServedError
from packhorse.formats import MegatronWriter
from packhorse.prepare import prepare
from packhorse.server.app.health import BlockProbe, ServerHealth
from packhorse.server.datasets.refusals import not_served
from packhorse.server.watching.metrics import Metrics


class Health:
    """Takes what gRPC's health is told."""

    async def set(self, service, status):
        pass


def test_a_loop_that_does_not_answer_serves_nobody():
    over = threading.Event()

    async def go():
        metrics = Metrics(list)
        server_health = ServerHealth(Health(), metrics)
        await server_health.set("datasets", "")
        serving = lambda: metrics.registry.get_sample_value("packhorse_serving")  # noqa: E731
        assert await asyncio.to_thread(server_health.ask)
        assert serving() == 1
        answers = []
        asking = threading.Thread(target=lambda: (answers.append(server_health.ask(0.05)), over.set()))
        asking.start()
        assert over.wait(20)  # the loop is stuck here
        assert (answers, serving()) == ([False], 0)
        asking.join()
        assert await asyncio.to_thread(server_health.ask)
        assert serving() == 1
        await server_health.set("datasets", "there is none")
        assert not await asyncio.to_thread(server_health.ask)

    asyncio.run(go())


class Datasets:
    """A catalog of two datasets, and a backend whose blocks a test can stop."""

    def __init__(self):
        self.made, self.hanging, self.gone = [], set(), set()

    def opened(self):
        return [type("Dataset", (), {"name": name}) for name in ("a", "b")]

    def get_bins(self, request):
        if request.dataset in self.gone:
            raise not_served(request.dataset, "it is gone")
        if request.dataset in self.hanging:
            threading.Event().wait(0.5)
        self.made.append(request.dataset)


def test_blocks_of_each_dataset_are_made_in_turn_and_one_that_hangs_does_not_count(monkeypatch, caplog, wait_until):
    monkeypatch.setattr("packhorse.server.app.health.PROBE_SECONDS", 0.05)
    datasets = Datasets()
    blocks = BlockProbe(datasets, datasets)
    for _ in range(4):
        blocks.make_block()
    assert datasets.made == ["a", "b", "a", "b"]
    datasets.hanging = {"a"}
    datasets.made.clear()
    blocks.make_block()
    blocks.make_block()
    assert "a" not in datasets.made[:1]
    datasets.hanging = {"a", "b"}
    with pytest.raises(TimeoutError):
        blocks.make_block()
    datasets.hanging, datasets.gone = set(), {"a", "b"}

    def none_hangs():
        try:
            blocks.make_block()
        except TimeoutError:
            return False
        return True

    wait_until(none_hangs)
    assert [record.getMessage().partition(":")[0] for record in caplog.records][:1] == ["no block of a can be made"]


def healthz(server):
    try:
        with urllib.request.urlopen(server.metrics_url.replace("/metrics", "/healthz"), timeout=20) as answer:
            return answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        return error.read().decode().partition(":")[0]


@pytest.fixture
def root(corpus, tmp_path):
    for name in ("few", "named"):
        shutil.copytree(corpus.root / name, tmp_path / "root" / name)
    return tmp_path / "root"


def count(client, name):
    return sum(len(block.ids) for block in client.stream_bins(name))


def test_a_pipe_in_the_place_of_any_file_stops_nothing(root, make_server, wait_until):
    """At the start for `few`, and at run time for `named` and its takedown."""
    os.mkfifo(root / "ids.txt")
    (root / "few.takedown.toml").write_text('[[redact]]\nids_file = "ids.txt"\n')
    os.mkfifo(root / "odd.mixture.toml")
    os.mkfifo(root / "entry")
    (root / "half").mkdir()
    os.mkfifo(root / "half" / "manifest.json")
    with make_server(root, "--metrics-listen", "127.0.0.1:0") as server, connect(server.target) as client:
        assert count(client, "named") == 600
        with pytest.raises(DatasetCorruptError, match=r"ids\.txt cannot be read: it is a pipe"):
            count(client, "few")
        os.mkfifo(root / "named.takedown.toml")
        (root / "named" / "manifest.json").unlink()
        os.mkfifo(root / "named" / "manifest.json")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "named.takedown.toml cannot be read: it is a pipe" in server.log())
        assert "what it said before stays in force" in server.log()
        assert count(client, "named") == 600
        assert healthz(server) == "SERVING"
        os.unlink(root / "few.takedown.toml")
        (root / "few.takedown.toml").write_text("[[redact]]\nids = [3]\n")
        assert count(client, "few") == 7
        server.terminate()
        assert server.wait() == 0


@pytest.mark.parametrize("flag", ["--token-file", "--tls-cert", "--tls-key", "--tls-client-ca", "--data-root"])
def test_a_pipe_as_an_option_is_an_error_at_once(corpus, tmp_path, flag, authority):
    issued = authority.issue("localhost")
    os.mkfifo(tmp_path / "pipe")
    files = {"--data-root": corpus.root, "--tls-cert": issued.cert, "--tls-key": issued.key}
    files[flag] = tmp_path / "pipe"
    arguments = [str(word) for pair in files.items() for word in pair]
    result = CliRunner().invoke(main, ["serve", "--listen", "127.0.0.1:0", *arguments])
    assert result.exit_code == 1
    said = result.stderr.strip().splitlines()[-1]
    assert flag in said or "data root" in said
    assert "it is a pipe, and must be a plain file" in said or "is not a folder" in said


def test_a_folder_that_vanishes_is_told_of_and_so_is_its_return(root, make_server, wait_until):
    def unusable(server):
        with urllib.request.urlopen(server.metrics_url, timeout=20) as answer:
            return 'packhorse_unusable_files{kind="dataset",name="few"} 1.0' in answer.read().decode()

    with make_server(root, "--metrics-listen", "127.0.0.1:0") as server, connect(server.target) as client:
        (root / "few").rename(root.parent / "few")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "few: its folder is gone; the version loaded before is served until" in server.log())
        assert unusable(server)
        assert count(client, "few") == 7
        (root.parent / "few").rename(root / "few")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "few: its folder is there again" in server.log())
        assert not unusable(server)


def test_health_of_tokens_is_their_own(tmp_path, make_server, wait_until):
    """Tokens that were withdrawn turn their own health, and not the service's."""

    def write(first):
        with MegatronWriter(tmp_path / "corpus", vocab_size=100, overwrite=True) as writer:
            for length in range(1, 9):
                writer.append(np.arange(length) + first)

    write(0)
    prepare(f"{tmp_path}/corpus.idx", output=tmp_path / "root" / "words", max_seq_len=16)
    with (
        make_server(tmp_path / "root", "--tokens") as server,
        connect(server.target) as client,
        grpc.insecure_channel(server.target) as channel,
    ):

        def health(name):
            asked = health_pb2.HealthCheckRequest(service=name)
            return health_pb2_grpc.HealthStub(channel).Check(asked, timeout=10, wait_for_ready=True).status

        service = "packhorse.v1.PackingService"
        assert health(service) == health(f"{service}.Tokens") == health_pb2.HealthCheckResponse.SERVING
        write(1)
        with pytest.raises(TokensNotServedError):
            client.get_bins("words", positions=[0], with_tokens=True)
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: health(f"{service}.Tokens") == health_pb2.HealthCheckResponse.NOT_SERVING)
        assert health(service) == health("") == health_pb2.HealthCheckResponse.SERVING
        assert count(client, "words") == 8


def test_processes_that_are_stopped_serve_nobody(corpus, make_server, wait_until):
    import subprocess

    with make_server(corpus.root, "--processes", "2", "--metrics-listen", "127.0.0.1:0") as server:
        assert healthz(server) == "SERVING"
        children = subprocess.check_output(["pgrep", "-P", str(server.pid)], text=True).split()
        for child in children:
            os.kill(int(child), signal.SIGSTOP)
        try:
            assert healthz(server) == "NOT_SERVING"
        finally:
            for child in children:
                os.kill(int(child), signal.SIGCONT)
        wait_until(lambda: healthz(server) == "SERVING")
