"""The status page: its document is true and fits its schema, and a browser shows it without complaint."""

import http.client
import json
import shutil
import socket
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jsonschema import Draft202012Validator
from tests.flat_words import prepare
from tests.waiting import wait_until

from packhorse.analysis import dataset_facts, dataset_report, html_report, page_files
from packhorse.analysis.figures import CostlyFacts
from packhorse.cli import main
from packhorse.client import connect
from packhorse.client.errors import TokensNotServedError
from packhorse.dataset import open_prepared
from packhorse.formats import MegatronWriter
from packhorse.proof import ask_activity
from packhorse.server.access.bearer_tokens import METRICS, Grant, hash_of, new_token
from packhorse.server.app.config import ServeConfig
from packhorse.topology import Topology


@pytest.fixture(scope="module")
def root(corpus, tmp_path_factory):
    """Datasets `few` and `many`, whose streams are too long to leave unread, and a mixture of them, `both`."""
    root = tmp_path_factory.mktemp("status") / "root"
    shutil.copytree(corpus.root / "few", root / "few")
    lengths = np.clip(np.random.default_rng(3).lognormal(3.6, 0.9, 500_000).astype(int), 1, 256)
    pq.write_table(pa.table({"length": lengths}), root.parent / "many.parquet")
    prepare(root.parent / "many.parquet", length_column="length", max_seq_len=256, output=root / "many", progress=False)
    (root / "both.mixture.toml").write_text("[[stages]]\nweights = {many = 3, few = 1}\n")
    return root


@pytest.fixture(scope="module")
def server(root, make_server):
    with make_server(root, "--metrics-listen", "127.0.0.1:0") as server:
        yield server


def get(server, path, **headers):
    url = server.metrics_url.removesuffix("/metrics") + path
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
        return answer.headers, answer.read()


def document(server):
    return json.loads(get(server, "/status.json")[1])


def complete(server):
    """The document, once the figures that somebody looks at are there."""

    def asked():
        found = json.loads(get(server, "/status.json?figures=few&figures=many&figures=both")[1])
        return all(isinstance(each["costly"], dict) or each["components"] for each in found["datasets"]) and found

    return wait_until(asked, seconds=120)


def validator():
    return Draft202012Validator(json.loads(page_files()["status.schema.json"][1]))


def test_the_document_fits_its_schema_at_every_stage_and_says_what_the_service_says(server, root):
    validator().validate(document(server))
    found = complete(server)
    validator().validate(found)
    with connect(server.target) as client:
        told = {each.name: each for each in client.list_datasets()}
    assert [each["name"] for each in found["datasets"]] == ["both", "few", "many"] == sorted(told)
    for facts in found["datasets"]:
        info = told[facts["name"]]
        for name in ("digest", "max_seq_len", "num_sequences", "num_bins", "total_tokens", "efficiency", "lower_bound"):
            assert facts[name] == getattr(info, name), name
        if facts["name"] == "both":
            assert facts["components"] == ["many", "few"]
            continue
        report = dataset_report(open_prepared(root / facts["name"]), run=Topology(world_size=8))
        assert facts["gap"] == report.stats.gap
        assert facts["costly"]["context_lengths"] == json.loads(json.dumps(report.facts()["context_lengths"]))
        assert sum(facts["fullness"]["counts"]) == info.num_bins
        assert sum(facts["lengths"]["counts"]) == report.dataset.plan.num_sequences
    assert found["server"]["refused_calls"] == {}
    assert found["server"]["host"] == socket.gethostname()


def children():
    """Command lines of the processes that make figures."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_bytes().split(b"\0"))
    return [line[-3].decode() for line in found if any(b"print_figures" in word for word in line)]


def test_figures_are_made_on_demand_once_for_equal_digests_and_only_while_somebody_looks(root, tmp_path, monkeypatch):
    digest = open_prepared(root / "many").manifest.digest
    figures = CostlyFacts(root)
    assert figures.of(digest) is None
    assert not [path for path in children() if path.startswith(str(root))]
    monkeypatch.setattr("packhorse.analysis.figures.LOOKED_SECONDS", 0.5)
    figures.request("many", digest)
    assert figures.of(digest) == "computing"
    wait_until(lambda: not figures.of(digest) and not [path for path in children() if path.startswith(str(root))])
    monkeypatch.setattr("packhorse.analysis.figures.LOOKED_SECONDS", 60.0)
    figures.request("many", digest)
    wait_until(lambda: isinstance(figures.of(digest), dict), seconds=120)
    monkeypatch.setattr(CostlyFacts, "_make", lambda *_: pytest.fail("made twice"))
    figures.request("of-equal-digest", digest)
    assert figures.of(digest)["packers"]
    figures.forget_others(set())
    assert figures.of(digest) is None


def test_a_dataset_that_is_gone_has_no_figures_and_hurts_nobody(tmp_path):
    figures = CostlyFacts(tmp_path)

    def found():
        figures.request("gone", "d")
        return figures.of("d") != "computing" and figures.of("d")

    assert "log" in wait_until(found, seconds=120)


def test_a_mixture_of_stages_has_the_efficiency_of_what_is_exported(tmp_path, make_server):
    for name, lengths in (("full", [8] * 40), ("half", [5] * 40)):
        prepare(lengths=np.array(lengths), max_seq_len=8, output=tmp_path / "root" / name, progress=False)
    (tmp_path / "root" / "staged.mixture.toml").write_text(
        "[[stages]]\nweights = {full = 1}\nuntil_bins = 20\n[[stages]]\nweights = {half = 1}\n"
    )
    with connect(f"embedded:{tmp_path / 'root'}") as client:
        info = client.get_dataset("staged")
        bins = list(client.stream_bins("staged", topology=Topology(world_size=1, batch_size=1)))
    held = sum(int(block.lengths.sum()) for block in bins) / (8 * sum(map(len, bins)))
    assert held < 1
    assert info.efficiency == pytest.approx(held)
    with make_server(tmp_path / "root", "--metrics-listen", "127.0.0.1:0") as server:
        metrics = get(server, "/metrics")[1].decode()
        assert f'packhorse_dataset_packing_efficiency_ratio{{dataset="staged"}} {info.efficiency}' in metrics
        assert 'packhorse_dataset_lower_bound_gap_ratio{dataset="staged"}' not in metrics
        assert 'packhorse_dataset_lower_bound_gap_ratio{dataset="half"}' in metrics
        shown = next(each for each in document(server)["datasets"] if each["name"] == "staged")
        assert shown["efficiency"] == info.efficiency


def test_streams_and_metrics_are_those_of_the_server(server):
    with connect(server.target) as client:
        streams = [
            client.stream_bins("many", rank=rank, topology=Topology(world_size=2, batch_size=2)) for rank in (0, 1)
        ]
        for stream, taken in zip(streams, (3, 1), strict=True):
            list(islice(stream, taken))
        found = wait_until(lambda: len((seen := document(server))["activity"]["streams"]) == 2 and seen)
        (asked,) = ask_activity(server.target)
        validator().validate(found)
        shown = {stream["id"]: stream for stream in found["activity"]["streams"]}
        assert shown.keys() == {stream.id for stream in asked.streams}
        for stream in asked.streams:
            for name in (
                "rank",
                "worker",
                "dataset",
                "epoch",
                "seed",
                "next_step",
                "num_steps",
                "digest",
                "sent_bytes",
            ):
                assert shown[stream.id][name] == getattr(stream, name), name
            assert "peer" not in shown[stream.id]
        (run,) = found["activity"]["runs"]
        assert run["open_ranks"] == 2
        metrics = get(server, "/metrics")[1].decode()
        num_streams = found["activity"]["servers"][0]["streams"]
        assert f'packhorse_active_streams{{method="StreamBins"}} {num_streams:.1f}' in metrics
        waiting = wait_until(lambda: document(server)["server"]["waiting"])
        for row in waiting:
            labels = ",".join(f'{name}="{row[name]}"' for name in sorted(row.keys() - {"idle_share"}))
            assert f"packhorse_waiting_ratio{{{labels}}} {row['idle_share']}" in metrics
        for stream in streams:
            stream.close()


def test_the_page_can_be_turned_off_and_changes_nothing(server, root, make_server):
    assert ServeConfig(data_root=Path()).status_page
    url = server.metrics_url.removesuffix("/metrics")
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(urllib.request.Request(f"{url}/status.json", data=b"{}", method="POST"), timeout=10)
    headers, page = get(server, "/")
    assert b"<html" in page
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    assert sum(len(content) for _, content in page_files().values()) < 300_000
    for path in ("/status/../status.py", "/status/status.py", "/status/"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(server, path)
    with make_server(root, "--metrics-listen", "127.0.0.1:0", "--no-status-page") as without:
        for path in ("/", "/status", "/status.json", "/status/page.js"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                get(without, path)


def test_figures_need_a_token_that_may_read_metrics(root, make_server, tmp_path):
    token = new_token()
    (tmp_path / "tokens").write_text(f"{Grant('watcher', hash_of(token), methods=(METRICS,))}\n")
    with make_server(root, "--metrics-listen", "127.0.0.1:0", "--token-file", str(tmp_path / "tokens")) as own:
        assert b"<html" in get(own, "/status")[1]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(own, "/status.json")
        assert json.loads(get(own, "/status.json", Authorization=f"Bearer {token}")[1])["datasets"]


def test_a_browser_shows_it_without_complaint(server, browser, axe, tmp_path):
    complete(server)
    origin = server.metrics_url.removesuffix("/metrics")
    with connect(server.target) as client:
        stream = client.stream_bins("many", rank=0, topology=Topology(world_size=2))
        next(stream)
        for width, theme in ((1200, "light"), (1200, "dark"), (390, "light"), (390, "dark")):
            for name, view, shown, number in (("first", "", "section", 6), ("many", "#/dataset/many", "canvas", 2)):
                browser.show(f"{origin}/status{view}", width=width, theme=theme)
                browser.until(f"document.querySelectorAll('{shown}').length === {number}")
                browser.picture(tmp_path / f"{name}-{width}-{theme}.png")
                assert browser.fits()
                assert browser.barriers(axe) == []
        stream.close()
    assert browser.troubles == []
    assert all(url.startswith(("data:", "about:", origin)) for url in browser.requests)


@contextmanager
def behind_prefix(server, prefix):
    """A proxy that shows the server's pages below a prefix and nowhere else; yields its origin."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if not self.path.startswith(f"{prefix}/"):
                self.send_error(404)
                return
            connection = http.client.HTTPConnection(server.metrics_url.split("/")[2], timeout=30)
            connection.request("GET", self.path.removeprefix(prefix))
            answer = connection.getresponse()
            content = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("server", "date", "connection"):
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{proxy.server_port}"
        proxy.shutdown()
        thread.join()


def test_the_page_works_behind_a_prefix_and_makes_figures_when_a_dataset_is_opened(server, browser):
    with behind_prefix(server, "/ops/packhorse") as origin:
        browser.show(f"{origin}/ops/packhorse/")
        browser.until("document.querySelectorAll('section').length === 6")
        assert browser.evaluate("document.title") == f"{socket.gethostname()}: Packhorse"
        assert (
            browser.evaluate("[...document.querySelectorAll('section[aria-labelledby=datasets] tbody a')].length") == 3
        )
        assert not any("figures=" in url for url in browser.requests)
        browser.evaluate("document.querySelector('section[aria-labelledby=datasets] [href=\"#/dataset/few\"]').click()")
        browser.until("document.querySelector('h2').textContent === 'few'")
        assert browser.evaluate("location.pathname + location.hash") == "/ops/packhorse/status#/dataset/few"
        browser.until("document.querySelectorAll('table').length > 3")
        browser.until("performance.getEntriesByType('resource').some(({ name }) => name.includes('figures='))")
        asked = {url.partition("?")[2] for url in browser.requests if "status.json" in url}
        assert asked == {"", "figures=few"}
        browser.evaluate("document.querySelector('nav a').click()")
        browser.until("document.querySelectorAll('section').length === 6")
    assert browser.troubles == []


def prepare_one(folder):
    prepare(lengths=np.array([5, 3]), max_seq_len=8, output=folder / "one", progress=False)
    return open_prepared(folder / "one")


def test_a_report_is_one_file_that_asks_nobody(root, browser, tmp_path):
    path = tmp_path / "report.html"
    main(["inspect", str(root / "many"), "--report", str(path)], standalone_mode=False)
    browser.show(path.as_uri())
    assert browser.evaluate("document.querySelector('h2').textContent") == "many"
    browser.until("document.querySelectorAll('canvas').length === 2")
    assert browser.evaluate("document.querySelectorAll('table').length") == 5
    assert browser.evaluate("document.querySelectorAll('dl > div').length") >= 8
    assert browser.evaluate("document.title") == "many, packed by Packhorse"
    assert browser.troubles == []
    assert all(url.startswith(("data:", path.as_uri())) for url in browser.requests)


def test_a_report_of_many_datasets_opens_on_their_list(browser, tmp_path):
    facts = dataset_facts(prepare_one(tmp_path))
    names = [f"set {number}/ü" for number in range(200)]
    path = tmp_path / "many.html"
    path.write_text(html_report([facts | {"name": name, "costly": None} for name in names]))
    browser.show(path.as_uri())
    browser.evaluate("document.querySelectorAll('tbody a')[7].click()")
    browser.until("document.querySelector('h2').textContent === 'set 7/ü'")
    assert browser.troubles == []


def test_a_corpus_whose_tokens_are_withdrawn_is_named(tmp_path, make_server):
    with MegatronWriter(tmp_path / "corpus", vocab_size=100) as writer:
        for length in range(1, 9):
            writer.append(np.arange(length))
    prepare(f"{tmp_path}/corpus.idx", output=tmp_path / "root" / "words", max_seq_len=16)
    with make_server(tmp_path / "root", "--tokens", "--metrics-listen", "127.0.0.1:0") as server:
        assert document(server)["server"]["unusable_files"] == []
        with MegatronWriter(tmp_path / "corpus", vocab_size=100, overwrite=True) as writer:
            for length in range(1, 9):
                writer.append(np.arange(length) + 1)
        with connect(server.target) as client, pytest.raises(TokensNotServedError):
            client.get_bins("words", positions=[0], with_tokens=True)
        # A document is kept a while.
        found = wait_until(lambda: (made := document(server))["server"]["unusable_files"] and made)
    validator().validate(found)
    assert found["server"]["unusable_files"] == [{"kind": "corpus", "name": "words"}]
