"""The built wheel with [server] in an empty environment: the Dockerfile's steps, run without Docker.

Owns that an installed server works with nothing but its own extra: the wheel's contents, the warmed kernels, `serve`,
`health`, a stream read by a client of another environment, and a clean end on SIGTERM. Owns also that a release has the
same bytes wherever it is built, and says one version.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.servers import free_port
from tests.waiting import wait_until

from packhorse.cli import COMMANDS
from packhorse.formats import MegatronWriter
from packhorse.prepare import prepare
from packhorse.topology import Topology

ROOT = Path(__file__).resolve().parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
DATASET = "tiny"
MAX_SEQ_LEN = 64
NUM_SEQUENCES = 500
START_SECONDS = 90
GRACE_SECONDS = 10
SUFFIXES = {".py", ".pyi", ".typed", ".proto", ".json", ".html", ".css", ".js", ".LICENSE"}
MOST_BYTES_BESIDE_PYTHON = 100_000
"""Compressed, in a wheel; 62 kB are the status page's library of charts. Sources may grow, data may not come in."""

pytestmark = pytest.mark.timeout(600)  # the install may have to download its packages

CPU = {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": ""}
"""As the image sets them, so that its kernels suit the machines that it meets."""


def outside_environment() -> dict[str, str]:
    """Returns this process's environment without what would reach into another Python or another server."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("PACKHORSE_", "PYTHON", "NUMBA_"))
    }


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end and fails with what it printed unless it exits 0."""
    result = subprocess.run(command, cwd=cwd, env=outside_environment() | environment, capture_output=True, text=True)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheel")


def build(source: Path, outdir: Path) -> list[Path]:
    """Builds wheel and sdist as `make release` does; returns them, by name."""
    run(
        *(sys.executable, "-m", "build", "--no-isolation", "--outdir", outdir, source),
        cwd=outdir.parent,
        SOURCE_DATE_EPOCH="1700000000",
    )
    return sorted(outdir.iterdir())


@pytest.fixture(scope="module")
def release(folder: Path) -> list[Path]:
    """The wheel, which the Dockerfile installs too, and the sdist."""
    return build(ROOT, folder / "dist")


@pytest.fixture(scope="module")
def wheel(release: list[Path]) -> Path:
    """The wheel alone."""
    return release[0]


def pip_of(bin_folder: Path) -> tuple[str | Path, ...]:
    """This environment's pip, for another that need not have one."""
    return (sys.executable, "-m", "pip", "--python", bin_folder / "python")


@pytest.fixture(scope="module")
def server_bin(folder: Path, wheel: Path) -> Path:
    """The bin folder of an environment that holds the wheel with [server] and nothing else."""
    environment = folder / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=folder)
    run(
        *pip_of(environment / "bin"),
        *("install", "--quiet", "--no-compile", "--constraint", ROOT / "constraints.txt", f"{wheel}[server]"),
        cwd=folder,
    )
    return environment / "bin"


@pytest.fixture(scope="module")
def kernel_cache(folder: Path, server_bin: Path) -> Path:
    """A folder of kernels compiled by the installed package."""
    cache = folder / "kernel-cache"
    cache.mkdir()
    code = "from packhorse.server.base.kernels import compile_kernels; compile_kernels()"
    run(server_bin / "python", "-c", code, cwd=folder, NUMBA_CACHE_DIR=str(cache), **CPU)
    return cache


@pytest.fixture(scope="module")
def data_root(folder: Path) -> Path:
    """A data root with one dataset, prepared by the outer environment: the server's has no pyarrow."""
    lengths = np.random.default_rng(0).integers(1, MAX_SEQ_LEN + 1, NUM_SEQUENCES)
    pq.write_table(pa.table({"length": lengths}), folder / "lengths.parquet")
    root = folder / "data"
    root.mkdir()
    run(
        Path(sys.executable).with_name("packhorse"),
        "prepare",
        *("--input", folder / "lengths.parquet"),
        *("--length-column", "length"),
        *("--max-seq-len", str(MAX_SEQ_LEN)),
        *("--output", root / DATASET),
        cwd=folder,
    )
    return root


@contextmanager
def serving(server_bin: Path, data_root: Path, kernel_cache: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Starts the installed server by environment variables, as the image does; yields it and its address."""
    target = f"127.0.0.1:{free_port()}"
    environment = outside_environment() | {
        "NUMBA_CACHE_DIR": str(kernel_cache),
        **CPU,
        "PACKHORSE_DATA_ROOT": str(data_root),
        "PACKHORSE_LISTEN": target,
        "PACKHORSE_METRICS_LISTEN": f"127.0.0.1:{free_port()}",
        "PACKHORSE_GRACE_SECONDS": str(GRACE_SECONDS),
    }
    log = data_root.parent / "serve.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [server_bin / "packhorse", "serve"], cwd=data_root.parent, env=environment, stdout=output, stderr=output
        ) as server,
    ):
        try:

            def serves():
                assert server.poll() is None, f"the server ended by itself:\n{log.read_text()}"
                command = [server_bin / "packhorse", "doctor", "--health", "--target", target]
                return subprocess.run(command, capture_output=True).returncode == 0

            wait_until(serves, START_SECONDS)
            yield server, target
        finally:
            server.kill()  # does nothing to a server that has ended


def test_wheel_holds_the_three_roots_as_one_namespace(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    parts = ("v1", "packing", "epoch", "dataset", "prepare", "server", "cli", "client", "formats")
    assert {f"packhorse/{part}/__init__.py" for part in parts} <= names
    assert {f"packhorse/{part}/py.typed" for part in parts} <= names
    assert "packhorse/__init__.py" not in names
    assert {name.split("/")[0] for name in names} == {"packhorse", f"packhorse-{VERSION}.dist-info"}


def test_a_release_is_the_same_bytes_from_another_folder(folder: Path, release: list[Path]) -> None:
    source = folder / "elsewhere" / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".venv", ".git", "__pycache__", ".*_cache", "build"))
    again = build(source, folder / "elsewhere" / "dist")
    assert [path.name for path in again] == [path.name for path in release] != []
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in release]


def test_an_index_takes_the_release(folder: Path, release: list[Path]) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", *release, cwd=folder)


def test_the_wheel_holds_nothing_that_a_wheel_should_not(folder: Path, wheel: Path) -> None:
    pytest.importorskip("check_wheel_contents", reason="it is not installed: pip install check-wheel-contents")
    run(sys.executable, "-m", "check_wheel_contents", wheel, cwd=folder)


def test_the_wheel_is_small_and_suits_every_machine(wheel: Path) -> None:
    """It is Python sources, two thirds of them docstrings and names, so nothing is compiled where it is installed."""
    assert wheel.name == f"packhorse-{VERSION}-py3-none-any.whl"
    files = [file for file in zipfile.ZipFile(wheel).infolist() if ".dist-info/" not in file.filename]
    assert {Path(file.filename).suffix for file in files} <= SUFFIXES
    beside = {file.filename: file.compress_size for file in files if not file.filename.endswith((".py", ".pyi"))}
    assert sum(beside.values()) <= MOST_BYTES_BESIDE_PYTHON, beside


def test_an_extra_brings_nothing_of_another_side(wheel: Path) -> None:
    metadata = zipfile.ZipFile(wheel).read(f"packhorse-{VERSION}.dist-info/METADATA").decode()
    required = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*(?:; extra == '(\w+)')?$", metadata, re.M)
    of = {extra: {name for name, its in required if its == extra} for extra in ("", "client", "server")}
    assert of["client"] == {"torch"}
    assert of["server"] == {"grpcio-reflection", "numba", "prometheus-client"}
    assert not of[""] & (of["client"] | of["server"] | {"pyarrow", "tokenizers"})
    assert {"grpcio", "numpy", "protobuf"} <= of[""]


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("deploy/helm/packhorse/Chart.yaml", r"^(?:version|appVersion): (.+)$"),
        ("deploy/compose.yaml", r"image: packhorse(?:-prepare)?:(\S+)"),
        ("deploy/examples/sidecar.yaml", r"image: packhorse:(\S+)"),
        ("deploy/README.md", r"(?:packhorse:|VERSION=)(\d+\.\d+\.\d+)"),
        ("Dockerfile", r"(?:packhorse:|VERSION=)(\d+\.\d+\.\d+)"),
        ("CHANGELOG.md", r"\A.*?^## (?:\[Unreleased\]: )?(\d+\.\d+\.\d+)"),
    ],
)
def test_every_file_says_the_version_of_the_project(file: str, said: str) -> None:
    found = re.findall(said, (ROOT / file).read_text(encoding="utf-8"), re.M | re.S if "CHANGELOG" in file else re.M)
    assert found
    assert set(found) == {VERSION}


def test_server_environment_has_neither_torch_nor_pyarrow(folder: Path, server_bin: Path) -> None:
    code = "import importlib.util as u; print([m for m in ('torch', 'pyarrow', 'tokenizers') if u.find_spec(m)])"
    assert run(server_bin / "python", "-c", code, cwd=folder).stdout.strip() == "[]"


def test_the_image_lists_what_is_in_it(folder: Path, server_bin: Path) -> None:
    """As the Dockerfile makes its sbom.cdx.json."""
    file = folder / "sbom.cdx.json"
    tool = Path(sys.executable).with_name("cyclonedx-py")
    command = ("environment", "--output-reproducible", "--output-file")
    assert f"cyclonedx-py {' '.join(command)} /opt/packhorse/sbom.cdx.json" in (ROOT / "Dockerfile").read_text()
    run(tool, *command, file, server_bin / "python", cwd=folder)
    bill = json.loads(file.read_text())
    listed = {(each["name"], each["version"]) for each in bill["components"]}
    code = "import importlib.metadata as m, json; print(json.dumps([(d.name, d.version) for d in m.distributions()]))"
    installed = run(server_bin / "python", "-c", code, cwd=folder).stdout
    assert listed == {tuple(each) for each in json.loads(installed)}
    assert ("packhorse", VERSION) in listed


@pytest.mark.long
def test_kernels_are_compiled_ahead(kernel_cache: Path) -> None:
    assert list(kernel_cache.rglob("*.nbc"))


def test_health_of_no_server_is_a_failure(folder: Path, server_bin: Path) -> None:
    command = (server_bin / "packhorse", "doctor", "--health", "--target", f"127.0.0.1:{free_port()}")
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr


@pytest.mark.long  # it compiles every kernel
def test_installed_server_streams_an_epoch_and_ends_on_sigterm(
    server_bin: Path, data_root: Path, kernel_cache: Path
) -> None:
    from packhorse.client import connect

    compiled = set(kernel_cache.rglob("*"))
    with serving(server_bin, data_root, kernel_cache) as (server, target):
        with connect(target) as client:
            stream = client.stream_bins(
                DATASET,
                epoch=0,
                seed=7,
                rank=0,
                topology=Topology(world_size=1, workers_per_rank=1, batch_size=4),
                worker=0,
            )
            ids = np.concatenate([block.ids for block in stream])
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=GRACE_SECONDS + 20) == 0
    np.testing.assert_array_equal(np.sort(ids), np.arange(NUM_SEQUENCES))
    assert set(kernel_cache.rglob("*")) == compiled, "serving compiled a kernel that compile_kernels() leaves out"


@pytest.fixture(scope="module")
def bare_bin(folder: Path, wheel: Path) -> Path:
    """The bin folder of a trainer's environment of gRPC, protobuf and NumPy: no torch, no numba, no pyarrow."""
    run(sys.executable, "-m", "venv", folder / "bare", cwd=folder)
    python = folder / "bare" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel, cwd=folder)
    return python.parent


@pytest.mark.long  # an environment of its own
def test_every_command_of_an_install_without_extras_helps_or_names_its_extra(folder: Path, bare_bin: Path) -> None:
    assert run(bare_bin / "packhorse", "--version", cwd=folder).stdout.startswith(f"packhorse {VERSION} (")
    listed = run(bare_bin / "packhorse", "--help", cwd=folder).stdout
    for name, entry in COMMANDS.items():
        assert f"  {name} " in listed
        done = subprocess.run([bare_bin / "packhorse", name, "--help"], cwd=folder, capture_output=True, text=True)
        if entry.extra is None:
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.startswith(f"Usage: packhorse {name}")
        else:
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr.endswith(f"; install it with: pip install 'packhorse[{entry.extra}]'\n")


@pytest.mark.long  # an environment of its own
def test_an_install_without_extras_reads_batches_of_a_server(folder: Path, bare_bin: Path, make_server) -> None:
    rng = np.random.default_rng(0)
    with MegatronWriter(folder / "tokens", vocab_size=1000) as writer:
        for length in rng.integers(1, MAX_SEQ_LEN + 1, 300):
            writer.append(rng.integers(0, 1000, length))
    manifest = prepare(folder / "tokens.idx", output=folder / "sets" / DATASET, max_seq_len=MAX_SEQ_LEN)
    script = (
        "import importlib.util as u, sys; from packhorse.client import connect\n"
        "assert not any(map(u.find_spec, ('torch', 'numba', 'pyarrow')))\n"
        "with connect(sys.argv[1]) as client, client.stream_batches(sys.argv[2]) as batches:\n"
        "    print(sum(int((batch['segment_ids'] > 0).sum()) for batch in batches))"
    )
    with make_server(folder / "sets", "--tokens") as server:
        found = run(bare_bin / "python", "-c", script, server.target, DATASET, cwd=folder)
    assert int(found.stdout) == manifest.own_tokens
