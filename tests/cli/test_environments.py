"""The README, the JSON outputs and the packers with the newest release of every dependency and with the oldest allowed.

Each environment is made anew, from the wheel. torch is the pinned one in both: it is what a machine without a GPU has.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tests.servers import free_port

ROOT = Path(__file__).parents[2]
EXTRAS = ("client", "server", "prepare")
TORCH = "torch==2.13.0"
WORDS = "a cart waits for the long one while horses carry many small loads on one road".split()  # noqa: SIM905


def requirements():
    """Of the base and of what a machine installs that prepares, serves and trains."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *(line for extra in EXTRAS for line in project["optional-dependencies"][extra])]


def oldest(requirement):
    name, version = re.fullmatch(r"([\w.-]+)>=([\d.]+)", requirement).groups()
    return f"{name}=={version}"


@pytest.fixture(scope="module", params=["newest", "oldest"])
def environment(request, tmp_path_factory):
    """Folder of an environment's commands."""
    folder = tmp_path_factory.mktemp(request.param)
    wanted = requirements() if request.param == "newest" else [oldest(line) for line in requirements()]
    wanted = [line for line in wanted if not line.startswith("torch")]
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "pip", "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, *wanted, TORCH], check=True)
    subprocess.run([*pip, "--no-deps", ROOT], check=True)
    return folder / "bin"


@pytest.fixture
def folder(tmp_path):
    """With what the README takes for granted: `corpus.jsonl` and a model's tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: i for i, word in enumerate(["<eos>", *sorted(set(WORDS))])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    (tmp_path / "my-model").mkdir()
    tokenizer.save(str(tmp_path / "my-model" / "tokenizer.json"))
    (tmp_path / "my-model" / "tokenizer_config.json").write_text('{"eos_token": "<eos>"}')
    lines = [json.dumps({"text": " ".join(WORDS[: 1 + i % len(WORDS)] * (1 + i % 9))}) for i in range(300)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_an_environment_runs_what_the_readme_says(environment, folder):
    commands = {"PATH": f"{environment}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [environment / "python", ROOT / "tests" / "cli" / "in_environment.py", str(free_port())],
        cwd=folder,
        env=os.environ | commands,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "HiGHS" not in done.stdout


def test_every_requirement_names_the_oldest_release_that_is_tested():
    assert [line for line in requirements() if not re.fullmatch(r"[\w.-]+>=[\d.]+", line)] == []


def test_pins_are_in_the_ranges():
    """So that what `make test` installs is what the project allows."""
    lines = (ROOT / "constraints.txt").read_text().lower().replace("_", "-").split()
    pins = dict(line.split("==") for line in lines)
    for requirement in map(Requirement, requirements()):
        assert requirement.specifier.contains(pins[requirement.name.lower()]), requirement
