"""Packhorse installs beside what trainers have: pip finds versions that suit both, by the newest requirements.

Owns that no range of ours shuts out a training stack. Downloads metadata only: a stack's own wheels, torch among them,
are never installed, and of its requirements those count that have to do with ours.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("", "server", "prepare")
NEIGHBOURS = {
    "Hugging Face": ("transformers", "trl", "accelerate", "datasets"),
    "vllm": ("vllm",),
    "sglang": ("sglang",),
    "trackers": ("wandb", "mlflow", "mlflow-skinny", "tensorboard", "opentelemetry-proto"),
    "trainers": ("lightning", "deepspeed", "verl", "torchtitan", "ray"),
}
SECONDS = 240

pytestmark = [pytest.mark.long, pytest.mark.timeout(4 * SECONDS)]


def pip_report(*wanted: str) -> list[dict]:
    """What pip would install, with its metadata, or a skip where no index answers."""
    options = ("--dry-run", "--ignore-installed", "--quiet", "--only-binary", ":all:", "--report", "-")
    command = [sys.executable, "-m", "pip", "install", *options, *wanted]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"the index takes more than {SECONDS} s")
    if re.search(r"NewConnectionError|ConnectTimeout|from versions: none", done.stderr):
        pytest.skip(f"no index answers: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)["install"]


def requirements_of(package: str) -> list[Requirement]:
    """What the newest release of a package wants of others here."""
    [found] = pip_report("--no-deps", package)
    wanted = map(Requirement, found["metadata"].get("requires_dist", []))
    return [each for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> dict[str, set[str]]:
    """Extra → the requirement of a wheel of this tree, without torch, and the packages that pip chooses for it."""
    folder = tmp_path_factory.mktemp("neighbours")
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    wanted = [f"{wheel}[{extra}]" if extra else str(wheel) for extra in EXTRAS]
    return {
        each: {canonicalize_name(found["metadata"]["name"]) for found in pip_report(each)} - {"packhorse"}
        for each in wanted
    }


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_pip_finds_versions_that_suit_both(ours, neighbours):
    shared = set().union(*ours.values())
    theirs = [
        f"{each.name}{each.specifier}"
        for package in NEIGHBOURS[neighbours]
        for each in requirements_of(package)
        if canonicalize_name(each.name) in shared or re.search("grpc|proto", each.name)
    ]
    assert theirs
    chosen = {found["metadata"]["name"] for found in pip_report(*ours, *theirs)}
    assert "torch" not in chosen


def test_ranges_that_exclude_each_other_are_found(ours):
    with pytest.raises(AssertionError, match=r"ResolutionImpossible|conflict"):
        pip_report(*ours, "protobuf<6")
