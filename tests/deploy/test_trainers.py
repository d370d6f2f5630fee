"""The examples of deploy/examples: valid, and the SLURM script seen to work with SLURM's commands played by others."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.chart import VERSIONS, render, validate
from tests.servers import free_port

EXAMPLES = Path(__file__).resolve().parents[2] / "deploy" / "examples"
SCRIPT = EXAMPLES / "train.slurm"

PLAYED = {
    "scontrol": "echo localhost",
    "srun": 'while [[ $1 == --* ]]; do shift; done; exec "$@"',
    "torchrun": 'packhorse stream named --limit 1 --target "$PACKHORSE_TARGET" > bin.jsonl',
}
"""SLURM's commands and the trainer, as far as the script uses them."""


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_manifests_are_valid(path: Path, version: str) -> None:
    for manifest in yaml.safe_load_all(path.read_text()):
        validate(manifest, version)


def test_trainers_find_the_service_of_the_chart() -> None:
    job = list(yaml.safe_load_all((EXAMPLES / "trainer-job.yaml").read_text()))[1]
    [container] = job["spec"]["template"]["spec"]["containers"]
    [target] = [each["value"] for each in container["env"] if each["name"] == "PACKHORSE_TARGET"]
    services = [each for each in render() if each["kind"] == "Service"]
    assert target in {
        f"dns:///{each['metadata']['name']}:{port['port']}" for each in services for port in each["spec"]["ports"]
    }


def test_shellcheck_has_nothing_against_the_script() -> None:
    found = subprocess.run([Path(sys.executable).with_name("shellcheck"), SCRIPT], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


@pytest.fixture
def slurm(tmp_path: Path, corpus: Any) -> dict[str, str]:
    """The environment of a job of one node."""
    for name, does in PLAYED.items():
        program = tmp_path / name
        program.write_text(f"#!/bin/bash\n{does}\n")
        program.chmod(0o755)
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    job = {"SLURM_JOB_NODELIST": "localhost", "SLURM_NNODES": "1", "PORT": str(free_port()), "PATH": path}
    return os.environ | job | {"DATA_ROOT": str(corpus.root)}


def test_a_job_serves_trains_and_ends(slurm: dict[str, str], tmp_path: Path) -> None:
    job = subprocess.run(["bash", SCRIPT], env=slurm, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert job.returncode == 0, job.stderr
    assert (tmp_path / "bin.jsonl").read_text().count("\n") == 1


def test_a_job_without_datasets_ends_with_the_reason(slurm: dict[str, str], tmp_path: Path) -> None:
    nothing = slurm | {"DATA_ROOT": str(tmp_path / "nothing")}
    job = subprocess.run(["bash", SCRIPT], env=nothing, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert job.returncode != 0
    assert "nothing" in job.stderr
    assert not (tmp_path / "bin.jsonl").exists()
