"""What a server says while it starts, and when it is stopped."""

import asyncio
import gc
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from itertools import product

import pytest
from click.testing import CliRunner
from tests import commands, faulty_server
from tests.faulty_server import Faults
from tests.waiting import until
from tests.warm import warm

from packhorse.cli import main
from packhorse.client import connect
from packhorse.server.app.health import LANES, ServerHealth, probe
from packhorse.server.watching.calls import SERVICE
from packhorse.server.watching.metrics import Metrics
from packhorse.topology import Topology


@contextmanager
def without_kernels(root, folder, wait_until):
    """A server whose kernels another process compiles for ever: its target, log and process."""
    target, log = f"unix:{folder}/s", folder / "log.txt"
    command = [
        sys.executable,
        faulty_server.__file__,
        "packhorse.cli",
        "serve",
        "--data-root",
        root,
        "--listen",
        target,
    ]
    environment = os.environ | Faults(kernels_missing=True).environment()
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        wait_until(lambda: "listening on" in log.read_text() or server.poll() is not None, seconds=100)
        yield target, server
        assert "Traceback" not in log.read_text()
    finally:
        server.kill()
        server.wait()


def everything(target, dataset):
    """What a client gets of an epoch, as lists: two ranks, two workers, a last partial step, look-ups."""
    with connect(target) as client:
        made = [repr(client.locate(dataset, ids=range(5), seed=3))]
        for rank, worker in product(range(2), range(2)):
            topology = Topology(world_size=2, workers_per_rank=2, batch_size=3)
            with client.stream_bins(dataset, seed=3, topology=topology, rank=rank, worker=worker) as stream:
                made += [(bins.positions.tolist(), bins.ids.tolist()) for bins in stream]
    return made


@pytest.mark.shelf
def test_a_server_serves_before_its_kernels_are_there(corpus, tmp_path, wait_until):
    """The same bins, and health tells that it serves: nothing waits for a compiler."""
    with without_kernels(corpus.root, tmp_path, wait_until) as (target, server):
        assert everything(target, "rows") == everything(f"embedded:{corpus.root}", "rows")
        health = CliRunner().invoke(main, ["doctor", "--health", "--target", target])
        assert health.stdout == f"{target}: SERVING\n"
        server.terminate()
        assert server.wait(30) == 0


def test_a_server_serves_where_stdout_takes_nothing(corpus, tmp_path, wait_until):
    log = tmp_path / "log.txt"
    target = f"unix:{tmp_path}/s"
    log.touch()
    arguments = ("serve", "--data-root", str(corpus.root), "--listen", target)
    server = warm().start(*arguments, out="/dev/full", err=log, environment=dict(os.environ), folder=tmp_path)
    try:
        wait_until(lambda: f"listening address={target}" in log.read_text(), seconds=100)
        with connect(target) as client:
            assert client.get_dataset("few").num_sequences == 7
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
        assert "stdout cannot be written: No space left on device" in log.read_text()
    finally:
        server.send_signal(signal.SIGKILL)


@pytest.mark.shelf
def test_a_client_that_vanishes_costs_no_traceback(running_server):
    code = """
import os, sys
from packhorse.client import connect
stream = connect(sys.argv[1]).stream_bins("rows")
next(stream)
os._exit(0)
"""
    assert commands.run(running_server.target, code=code).returncode == 0
    health = CliRunner().invoke(main, ["doctor", "--health", "--target", running_server.target])
    assert health.exit_code == 0
    assert "Traceback" not in running_server.log()


def test_a_server_whose_datasets_are_all_taken_away_does_not_start(corpus, tmp_path):
    shutil.copytree(corpus.root / "few", tmp_path / "root" / "few")
    (tmp_path / "root" / "few.takedown.toml").write_text("[[redact]]\nids = 3")
    command = ["serve", "--data-root", str(tmp_path / "root"), "--listen", f"unix:{tmp_path}/s"]
    result = commands.run(*command)
    assert result.returncode == 1
    assert result.stdout == "", "it does not say that it serves"
    assert "few is not served: few.takedown.toml, line 2: redact[0].ids" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Error: no dataset below ")


class Health:
    """The last status of each service."""

    def __init__(self):
        self.statuses = {}

    async def set(self, service, status):
        self.statuses[service] = status


def test_health_has_one_answer_of_several_reasons(caplog):
    async def go_through():
        health, metrics = Health(), Metrics(list)
        server_health = ServerHealth(health, metrics)

        async def after(cause, reason):
            await server_health.set(cause, reason)
            assert metrics.registry.get_sample_value("packhorse_serving") == (health.statuses[SERVICE] == 1)
            return health.statuses[SERVICE] == 1

        assert await after("datasets", "")
        assert not await after("datasets", "no dataset can be served")
        assert not await after(LANES, "")
        assert health.statuses[""] == 1, "a restart does not help"
        assert not await after("datasets", "no dataset can be served")
        assert not await after(LANES, "no blocks")
        assert health.statuses[""] == 2, "a restart may help"
        assert not await after("datasets", "")
        assert await after(LANES, "")
        assert await after(LANES, "")

    with caplog.at_level("INFO", "packhorse"):
        asyncio.run(go_through())
    assert [record.getMessage() for record in caplog.records] == [
        "health is NOT_SERVING: no dataset can be served",
        "health is NOT_SERVING: no blocks",
        "health is SERVING again",
    ]


@pytest.mark.shelf
def test_health_tells_while_nothing_can_be_served(corpus, tmp_path, make_server, wait_until):
    root = tmp_path / "root"
    shutil.copytree(corpus.root / "few", root / "few")

    def health():
        return CliRunner().invoke(main, ["doctor", "--health", "--target", server.target])

    with make_server(root, "--metrics-listen", "127.0.0.1:0") as server:
        assert (health().exit_code, health().stdout) == (0, f"{server.target}: SERVING\n")
        manifest = root / "few" / "manifest.json"
        whole = manifest.read_text()
        manifest.write_text(whole[:40])
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "not serving the new version of few: few/manifest.json" in server.log())
        assert "a restart would not serve it" in server.log()
        assert health().exit_code == 0, "what was loaded is served on"
        with urllib.request.urlopen(server.metrics_url, timeout=10) as answer:
            assert 'packhorse_unusable_files{kind="dataset",name="few"} 1.0' in answer.read().decode()
        with (root / "few" / "pools.npy").open("r+b") as pool:
            pool.truncate(100)
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: health().exit_code == 1)
        assert health().stdout == f"{server.target}: NOT_SERVING\n"
        assert CliRunner().invoke(main, ["doctor", "--health=", "--target", server.target]).exit_code == 0
        assert "health is NOT_SERVING: no dataset below" in server.log()
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(server.metrics_url.replace("/metrics", "/healthz"), timeout=10)
        shutil.rmtree(root / "few")
        shutil.copytree(corpus.root / "few", root / "few")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: health().exit_code == 0)
        assert "health is SERVING again" in server.log()


class Busy:
    """A lane that answers nobody before it is closed."""

    def __init__(self):
        self.asked = []

    def submit(self, work):
        self.asked.append(asyncio.get_running_loop().create_future())
        return self.asked[-1]


def test_a_drain_that_ends_a_probe_leaves_no_trace(caplog):
    async def drain():
        lanes = (Busy(), Busy())
        probing = asyncio.create_task(probe(lanes, None, None))
        await until(lambda: all(lane.asked for lane in lanes))
        probing.cancel()
        for lane in lanes:
            for future in lane.asked:
                future.cancel()
        del future
        with suppress(asyncio.CancelledError):
            await probing
        assert [len(lane.asked) for lane in lanes] == [1, 1]

    asyncio.run(drain())
    gc.collect()
    assert not caplog.records
