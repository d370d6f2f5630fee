"""Shared fixtures: small prepared datasets with their tokens, and real servers in processes of their own.

Owns what several folders of tests need; what one folder needs stands in its own conftest.
"""

import gc
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import settings
from tests import warm
from tests.servers import Server

from packhorse.cli import main

settings.register_profile("no clock", deadline=None)  # a busy machine is no failure
settings.load_profile("no clock")


os.environ.setdefault("OMP_NUM_THREADS", "1")
"""Threads of torch, here and in all that tests start, would wait for each other at full speed where no core is free."""


def _take_signals_as_a_terminal_does():
    """A shell that starts us in the background, or under nohup, lets us and what we start ignore these."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


_take_signals_as_a_terminal_does()


@pytest.fixture(autouse=True, scope="module")
def _signals_stay_as_they_are():
    """What a file of tests leaves ignored or held back, every process started after it would ignore too."""
    before = _signals()
    yield
    assert _signals() == before


def _signals():
    ignored = {each for each in signal.valid_signals() if signal.getsignal(each) == signal.SIG_IGN}
    return ignored, signal.pthread_sigmask(signal.SIG_BLOCK, [])


def pytest_collection_finish():
    """Thousands of tests and all that they import stay until the end: no collection need walk them again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # nor so often


def pytest_collection_modifyitems(items):
    """Skips what needs CUDA where there is none."""
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if wanting:
        import torch

        if not torch.cuda.is_available():
            for item in wanting:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="module")
def cluster():
    """Ray on two nodes with a processor each, started apart; a test adds what it takes away."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'packhorse[ray]' runs this test")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="session")
def topologies():
    """Strategy factory: see `tests.strategies`."""
    from tests.strategies import topologies

    return topologies


@pytest.fixture(scope="session")
def scheduled():
    """Strategy factory: see `tests.strategies`."""
    from tests.strategies import scheduled

    return scheduled


@dataclass(frozen=True)
class Corpus:
    """Sequences, their token files and the datasets prepared from them."""

    sequences: list[np.ndarray]
    """Tokens by row, int64."""
    root: Path
    """Of the prepared datasets, see `corpus`."""
    ids: dict[str, np.ndarray]
    """Dataset → id of every row."""
    megatron: Path
    """X of X.bin and X.idx; ids are rows."""
    flat: Path
    """Flat token file; ids are rows."""

    def lengths(self, dataset):
        """Id → planned length."""
        limit = 96 if dataset == "truncated" else 10**9
        pairs = zip(self.ids[dataset].tolist(), self.sequences, strict=False)
        return {number: min(len(tokens), limit) for number, tokens in pairs}


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """`rows` (2,000 sequences, ids are rows), `named` (600, int64 ids), `truncated` (400 at 96 tokens), `few` (7)."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from tests.flat_words import prepare

    from packhorse.formats import MegatronWriter, write_flat_tokens

    folder = tmp_path_factory.mktemp("corpus")
    random = np.random.default_rng(7)
    lengths = np.clip(random.lognormal(3.6, 0.9, 2000).astype(int), 1, 256)
    sequences = [random.integers(0, 60_000, length) for length in lengths]
    names = random.choice(2**40, 600, replace=False) - 2**39
    table = pa.table({"length": lengths, "id": np.concatenate([names, np.arange(1400)])})
    with MegatronWriter(folder / "megatron", vocab_size=60_000) as writer:
        for tokens in sequences:
            writer.append(tokens)
    write_flat_tokens(folder / "flat.bin", sequences, np.uint16)
    for name, rows, options in (
        ("rows", 2000, {"max_seq_len": 256}),
        ("named", 600, {"max_seq_len": 384, "id_column": "id"}),
        ("truncated", 400, {"max_seq_len": 96, "over_length": "truncate"}),
        ("few", 7, {"max_seq_len": 256}),
    ):
        pq.write_table(table.slice(0, rows), folder / f"{name}.parquet")
        prepare(
            folder / f"{name}.parquet", length_column="length", output=folder / "root" / name, progress=False, **options
        )
    ids = {"rows": np.arange(2000), "named": names, "truncated": np.arange(400), "few": np.arange(7)}
    return Corpus(sequences, folder / "root", ids, folder / "megatron", folder / "flat.bin")


def pytest_sessionfinish():
    """Ends what servers, commands and scripts were forked from."""
    warm.close()


@pytest.fixture(scope="session")
def make_server(tmp_path_factory):
    """Context manager: a server of its own; options as of `tests.servers.Server`, `faults` among them."""

    class Own:
        def __init__(self, root, *flags, **options):
            log = tmp_path_factory.mktemp("server") / "log.txt"
            self.server = Server(root, *flags, log=log, **options)

        def __exit__(self, *_):
            if self.server.process.poll() is None:
                self.server.kill()  # faster than a drain, which tests of its own look at

        def __enter__(self):
            return self.server

    return Own


@pytest.fixture(scope="session")
def running_server(corpus, make_server):
    """The server that read-only tests share, with metrics. Never stop it."""
    with make_server(corpus.root, "--metrics-listen", "127.0.0.1:0") as server:
        yield server
        server.stop()


@pytest.fixture(scope="session")
def running_unix_server(corpus, make_server, tmp_path_factory):
    """Another, on a unix socket."""
    path = tmp_path_factory.mktemp("s") / "s"  # such paths are limited to about 100 bytes
    with make_server(corpus.root, listen=f"unix:{path}") as server:
        yield server


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    """A CA for tests, which issues certificates."""
    from tests.certificates import Authority

    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def client(running_server):
    """A client of the shared server."""
    from packhorse.client import RetryPolicy, connect

    with connect(running_server.target, retry=RetryPolicy(deadline_seconds=20)) as client:
        yield client


@pytest.fixture(scope="session")
def embedded(corpus):
    """A client of the same datasets without a server."""
    from packhorse.client import connect

    with connect(f"embedded:{corpus.root}") as client:
        yield client


@pytest.fixture(scope="session")
def unix_client(running_unix_server):
    """A client over the unix socket."""
    from packhorse.client import RetryPolicy, connect

    with connect(running_unix_server.target, retry=RetryPolicy(deadline_seconds=20)) as client:
        yield client


@pytest.fixture(scope="session")
def wait_until():
    """Function: see `tests.waiting`."""
    from tests.waiting import wait_until

    return wait_until


@pytest.fixture(scope="session")
def memory_bytes():
    """Function: resident anonymous memory of a process."""

    def read(pid):
        with open(f"/proc/{pid}/status") as status:
            fields = dict(line.split(":", 1) for line in status)
        return int(fields["RssAnon"].split()[0]) * 1024

    return read


@pytest.fixture
def no_launcher(monkeypatch):
    """No RANK or WORLD_SIZE in the environment."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert "RANK" not in os.environ


@dataclass(frozen=True)
class Delivered:
    """One bin as a stream delivered it."""

    step: int
    slot: int
    position: int
    ids: tuple
    lengths: tuple


@pytest.fixture(scope="session")
def bins_of_stream():
    """Function: every bin of a stream (or of some blocks) as `Delivered`; `stride` is workers_per_rank."""

    def split(blocks, batch_size=1, stride=1):
        bins = []
        for block in blocks:
            assert len(block) == len(block.steps) * batch_size
            assert len(block.steps) < 2 or block.steps.step == stride
            for number, (ids, lengths) in enumerate(block.bins()):
                step, slot = divmod(number, batch_size)
                bins.append(
                    Delivered(
                        step=block.steps[step],
                        slot=slot,
                        position=int(block.positions[number]),
                        ids=tuple(ids.tolist()),
                        lengths=tuple(lengths.tolist()),
                    )
                )
        return bins

    return split


@pytest.fixture(scope="session")
def joined():
    """Function: blocks laid end to end as the bytes of (ids, lengths, bin_ends, positions)."""

    def join(blocks):
        blocks = list(blocks)
        parts = {"ids": [], "lengths": [], "bin_ends": [], "positions": []}
        taken = 0
        for block in blocks:
            assert block.ids.dtype == block.bin_ends.dtype == block.positions.dtype == np.int64
            assert block.lengths.dtype == np.int32
            assert len(block.ids) == len(block.lengths) == (block.bin_ends[-1] if len(block) else 0)
            parts["ids"].append(block.ids)
            parts["lengths"].append(block.lengths)
            parts["bin_ends"].append(block.bin_ends + taken)
            parts["positions"].append(block.positions)
            taken += len(block.ids)
        return {name: np.concatenate(arrays).tobytes() if arrays else b"" for name, arrays in parts.items()}

    return join


@pytest.fixture(scope="session")
def s3_port():
    """Of a server in this process, for all tests that want one."""
    from tests.stores import s3_server

    with s3_server() as port:
        yield port


@pytest.fixture
def bucket(s3_port, request, monkeypatch):
    """An empty bucket, which `s3://` URLs find in this process and in those it starts."""
    from tests.stores import Bucket

    bucket = Bucket(f"bucket-{abs(hash(request.node.nodeid)):x}", s3_port)
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    bucket.client.create_bucket(Bucket=bucket.name)
    return bucket


@pytest.fixture(scope="session")
def packhorse():
    """Function: runs `packhorse ARGS…` in this process; the result has exit_code, stdout and stderr."""

    def run(*arguments):
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture(scope="session")
def json_lines():
    """Function: every line of an output as the object that it holds."""
    return lambda output: [json.loads(line) for line in output.splitlines()]


@pytest.fixture(scope="session")
def target(running_server):
    """The shared server's address."""
    return running_server.target
