"""The forge's workflows: they run what a developer runs, may write only where they publish, and end by themselves.

Owns what can be checked without the forge. Leaves what the commands do to the Makefile's own tests.
"""

import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

OTHER_COMMANDS = {
    ".venv/bin/python -m pytest -m long tests/cli/test_environments.py": "one of the long tests, for every change",
    'docker buildx imagetools create --tag "$IMAGE" "$IMAGE-amd64" "$IMAGE-arm64"': "joins what two machines built",
    'cosign sign --yes --recursive "$IMAGE@$(docker buildx imagetools inspect "$IMAGE"'
    " --format '{{.Manifest.Digest}}')\"": "signs with the workflow's identity, which no developer has",
    'echo "number=${GITHUB_REF_NAME#v}" >> "$GITHUB_OUTPUT"': "the forge's expressions cannot cut the v off a tag",
}
"""Commands that are no target of the Makefile → why."""

WRITES = {
    ("release", "platform"): {"packages"},
    ("release", "image"): {"packages", "id-token"},
    ("release", "pypi"): {"id-token"},
    ("release", "site"): {"contents"},
}
"""(workflow, job) → what it may write; every other job only reads."""

PINNED = re.compile(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)|\./\.github/workflows/\w+\.yml")


def load(path: Path) -> dict[Any, Any]:
    """Returns a YAML file; `on` is the key True, as YAML 1.1 reads it."""
    return yaml.safe_load(path.read_text())


def flaws_of(name: str, workflow: dict[Any, Any]) -> list[str]:
    """Returns what is wrong with a workflow."""
    flaws = [] if workflow.get("permissions") == {} else ["jobs that name no permissions have some"]
    flaws += [] if "concurrency" in workflow else ["two runs of one ref are not kept apart"]
    for job_name, job in workflow["jobs"].items():
        flaws += [f"{job_name}: {flaw}" for flaw in flaws_of_job(job, WRITES.get((name, job_name), set()))]
    return flaws


def flaws_of_job(job: dict[str, Any], writes: set[str]) -> Iterator[str]:
    """Yields what is wrong with a job, which may write this and nothing else."""
    permissions = job.get("permissions")
    if not isinstance(permissions, dict) or set(permissions.values()) > {"read", "write"}:
        yield "names no permissions of its own"
    elif {scope for scope, access in permissions.items() if access == "write"} != writes:
        yield "writes something else than what it is there for"
    if "uses" not in job and not job.get("timeout-minutes", 360) <= 180:
        yield "may hang for hours"
    for used in (job, *job.get("steps", [])):
        if "uses" in used and not PINNED.fullmatch(used["uses"]):
            yield f"{used['uses']} is not pinned to a major version"
        if used.get("uses", "").startswith("actions/checkout@") and used.get("with", {}) != {
            "persist-credentials": False
        }:
            yield "leaves its token to what it runs"
        if "run" in used:
            yield from flaws_of_command(used["run"])


def flaws_of_command(command: str) -> Iterator[str]:
    """Yields what is wrong with a command of a step."""
    if "${{" in command:
        yield f"{command!r} has text of the event in a shell; hand it over in env"
    words = shlex.split(command)
    if command not in OTHER_COMMANDS and words[0] != "make":
        yield f"{command!r} is neither a target of the Makefile nor among OTHER_COMMANDS"
    if words[0] == "make" and (unknown := {word for word in words[1:] if "=" not in word} - TARGETS):
        yield f"the Makefile has no target {unknown}"


def pythons_of(workflow: dict[Any, Any]) -> list[str]:
    """Returns the versions of Python that tests run on, each once."""
    job = workflow["jobs"]
    fixed = [
        step["with"]["python-version"] for step in job["test"]["steps"] if "python-version" in step.get("with", {})
    ]
    return sorted([*fixed, *job["core"]["strategy"]["matrix"]["python"]], key=lambda each: int(each.split(".")[1]))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_is_run_here(path: Path) -> None:
    assert flaws_of(path.stem, load(path)) == []


def test_what_is_allowed_is_there() -> None:
    jobs = {(path.stem, name): job for path in WORKFLOWS for name, job in load(path)["jobs"].items()}
    commands = {step["run"] for job in jobs.values() for step in job.get("steps", []) if "run" in step}
    assert OTHER_COMMANDS.keys() <= commands
    assert WRITES.keys() <= jobs.keys()
    assert {"make test", "make test-core", "make test-long", "make docs"} <= commands


@pytest.mark.parametrize(
    ("there", "wrong", "flaw"),
    [
        ("permissions: {}", "permissions: read-all", "jobs that name no permissions"),
        ("concurrency:", "env2:", "not kept apart"),
        ("contents: read", "contents: write", "writes something else"),
        ("    permissions:\n      contents: read\n", "", "names no permissions of its own"),
        ("timeout-minutes: 60", "continue-on-error: false", "may hang"),
        ("actions/checkout@v6", "actions/checkout@main", "not pinned"),
        ("persist-credentials: false", "persist-credentials: true", "leaves its token"),
        ("make test-core", "make test-cores", "no target {'test-cores'}"),
        ("make test-long", "pip install packhorse", "neither a target"),
        ("make docs", "make docs TITLE='${{ github.head_ref }}'", "text of the event"),
    ],
)
def test_a_flaw_is_found(there: str, wrong: str, flaw: str) -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text()
    assert there in text
    lines = flaws_of("ci", yaml.safe_load(text.replace(there, wrong)))
    assert any(flaw in line for line in lines), lines


def test_tests_run_on_every_python_that_is_named() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r"Python :: 3\.\d+$", line)]
    assert pythons_of(load(ROOT / ".github/workflows/ci.yml")) == named
    assert project["requires-python"] == f">={named[0]}"


def test_nothing_is_published_before_it_is_tested() -> None:
    jobs = load(ROOT / ".github/workflows/release.yml")["jobs"]
    assert jobs["test"]["uses"] == "./.github/workflows/ci.yml"
    for name in jobs.keys() - {"test"}:
        before, left = set(), [name]
        while left:
            needs = jobs[left.pop()].get("needs", [])
            left += [needs] if isinstance(needs, str) else needs
            before |= set(left)
        assert "test" in before, name


def test_each_image_has_kernels_for_its_processor() -> None:
    """The Dockerfile's own default is one of x86."""
    job = load(ROOT / ".github/workflows/release.yml")["jobs"]["platform"]
    cpus = {each["architecture"]: each["cpu"] for each in job["strategy"]["matrix"]["include"]}
    default = re.search(r"^ARG CPU=(.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert default is not None
    assert cpus == {"amd64": default[1], "arm64": "generic"}


def test_pins_that_are_raised_are_there() -> None:
    files = {"pip": "pyproject.toml", "github-actions": ".github/workflows/ci.yml", "docker": "Dockerfile"}
    updates = load(ROOT / ".github/dependabot.yml")["updates"]
    assert {each["package-ecosystem"] for each in updates} == files.keys()
    for each in updates:
        assert (ROOT / each["directory"].lstrip("/") / files[each["package-ecosystem"]]).is_file()


def test_a_tag_of_another_version_builds_nothing() -> None:
    """`make` only prints and tests; with the version's own tag it would go on to build."""
    recipe = next(line for line in (ROOT / "Makefile").read_text().splitlines() if "$(TAG)" in line).strip()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for tag, status in ((f"v{version}", 0), ("", 0), ("v0.0.99", 2)):
        done = subprocess.run(
            ["make", "-f", "-", "release", f"TAG={tag}"],
            input=f"release:\n\t{recipe}\n",
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == status, (tag, done.stdout)


def test_workflows_are_actionlint_clean() -> None:
    if (actionlint := shutil.which("actionlint")) is None:
        pytest.skip("no actionlint here; see https://github.com/rhysd/actionlint")
    done = subprocess.run([actionlint, *WORKFLOWS], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
