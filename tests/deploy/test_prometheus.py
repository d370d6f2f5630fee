"""Prometheus itself against a real server with live streams: every query of the dashboard and of the alerts.

Owns that what we ask Prometheus is answered; test_deploy.py owns that the rules fire and end (promtool).
"""

import contextlib
import json
import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.servers import free_port
from tests.waiting import wait_until

from packhorse.client import PackhorseError, connect
from packhorse.topology import Topology

DEPLOY = Path(__file__).parents[2] / "deploy"
SECONDS = 90

pytestmark = [
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="apt-get install prometheus has it"),
]


def stream_until(done: threading.Event, target: str, dataset: str, rank: int) -> None:
    """Reads epochs from their second step on, as after a lost connection; asks for a dataset that is not there."""
    with connect(target) as client:
        while not done.is_set():
            with client.stream_bins(dataset, rank=rank, topology=Topology(world_size=2), first_step=1) as stream:
                for _ in stream:
                    done.wait(0.05)
            with contextlib.suppress(PackhorseError):
                client.get_dataset("nothing")


@pytest.fixture(scope="module")
def prometheus(corpus: Any, make_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prometheus that scrapes a server in use, under the rules that we ship."""
    folder = tmp_path_factory.mktemp("prometheus")
    root = folder / "data"
    shutil.copytree(corpus.root, root)
    (root / "broken").mkdir()
    (root / "broken" / "manifest.json").write_text("{}")
    with make_server(root, "--metrics-listen", "127.0.0.1:0") as server:
        configuration = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
        configuration["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        configuration["rule_files"] = [str(DEPLOY / "prometheus" / "alerts.yml")]
        [job] = configuration["scrape_configs"]
        job["static_configs"] = [{"targets": [urllib.parse.urlsplit(server.metrics_url).netloc]}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        address = f"127.0.0.1:{free_port()}"
        command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"]
        done = threading.Event()
        threads = [threading.Thread(target=stream_until, args=(done, server.target, "rows", rank)) for rank in range(2)]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)
        try:
            for thread in threads:
                thread.start()
            yield f"http://{address}"
        finally:
            done.set()
            process.terminate()
            process.wait(30)
            for thread in threads:
                thread.join(30)


def answer(prometheus: str, path: str, **parameters: str) -> Any:
    """The data of an answer of Prometheus's API; None while it starts."""
    url = f"{prometheus}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return json.load(response)["data"]
    except urllib.error.HTTPError as error:
        if error.code == 503:  # it starts
            return None
        raise AssertionError(f"{parameters}: {error.read().decode()}") from None
    except OSError:
        return None


def queries() -> list[str]:
    dashboard = json.loads((DEPLOY / "grafana" / "packhorse.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def test_every_query_of_the_dashboard_has_an_answer(prometheus: str) -> None:
    waiting = [each.replace("$__rate_interval", "10s") for each in queries()]
    assert waiting

    def answered() -> bool:
        waiting[:] = [each for each in waiting if not (answer(prometheus, "query", query=each) or {}).get("result")]
        return not waiting

    wait_until(lambda: answer(prometheus, "rules"), SECONDS)
    try:
        wait_until(answered, SECONDS)
    except AssertionError as error:
        pytest.fail("\n".join([f"{error}; no answer to", *waiting]))


def test_every_rule_is_evaluated(prometheus: str) -> None:
    def rules() -> list[Any]:
        found = [rule for group in (answer(prometheus, "rules") or {}).get("groups", []) for rule in group["rules"]]
        return found if found and all(rule["health"] != "unknown" for rule in found) else []

    found = wait_until(rules, SECONDS)
    assert {rule["name"]: rule.get("lastError") for rule in found if rule["health"] != "ok"} == {}
    text = (DEPLOY / "prometheus" / "alerts.yml").read_text()
    assert {rule["name"] for rule in found} == set(re.findall(r"- (?:alert|record): (\S+)", text))
