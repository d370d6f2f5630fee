"""The command line in every install: what is missing is named, with its extra, before any work."""

import subprocess
import sys

import click
import pytest

from packhorse import cli
from packhorse.cli import COMMANDS, main

EXTRAS = {  # what each install lacks of the packages that commands need
    "base": {"torch", "numba", "prometheus_client", "grpc_reflection", "tokenizers", "matplotlib"},
    "client": {"numba", "prometheus_client", "grpc_reflection", "tokenizers", "matplotlib"},
    "server,prepare": {"torch", "matplotlib"},
}
OF_TRAINERS = {"show", "stream", "export", "audit", "inspect", "doctor", "top", "bench"}
"""Commands that every install has."""
EXTRA_OF = {name: entry.extra for name, entry in COMMANDS.items() if name not in OF_TRAINERS}
MISSING = {"base": EXTRA_OF, "client": EXTRA_OF, "server,prepare": {"demo": "demo"}}


@pytest.fixture
def install(monkeypatch):
    """Function: from here on, only what an install has can be found."""

    def only(name):
        found = cli.find_spec
        monkeypatch.setattr(cli, "find_spec", lambda module: None if module in EXTRAS[name] else found(module))

    return only


@pytest.mark.shelf
@pytest.mark.parametrize("name", EXTRAS)
def test_help_lists_every_command_and_the_extra_that_is_missing(packhorse, install, name):
    install(name)
    result = packhorse("--help")
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    for command in COMMANDS:
        assert f" {command} " in text
        extra = MISSING[name].get(command)
        assert (f" {command} (needs packhorse[" in text) == (extra is not None)
        assert extra is None or f" {command} (needs packhorse[{extra}])" in text
    assert packhorse().stdout.startswith("Usage:") or packhorse().stderr.startswith("Usage:")


@pytest.mark.shelf
@pytest.mark.parametrize(("name", "command"), [(name, command) for name in EXTRAS for command in MISSING[name]])
def test_a_command_that_cannot_run_says_what_to_install(packhorse, install, name, command):
    install(name)
    result = packhorse(command, "--help")
    assert result.exit_code == 1
    extra = MISSING[name][command]
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith(f"Error: `packhorse {command}` needs ")
    assert f"pip install 'packhorse[{extra}]'" in result.stderr


def test_every_module_of_an_extra_is_named_in_the_project():
    """So that no command asks for what its extra does not install."""
    import tomllib
    from pathlib import Path

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    packages = {"prometheus_client": "prometheus-client", "grpc_reflection": "grpcio-reflection"}
    for entry in COMMANDS.values():
        wanted = extras.get(entry.extra, [])
        if entry.extra == "demo":
            wanted = [*wanted, *extras["client"], *extras["server"], *extras["prepare"]]
        for module in entry.modules:
            assert any(each.startswith(packages.get(module, module)) for each in wanted), module


@pytest.mark.shelf
@pytest.mark.parametrize("name", COMMANDS)
def test_the_summary_of_a_command_is_the_first_sentence_of_its_help(name):
    command = main.get_command(click.Context(main), name)
    assert command.help.partition("\n\n")[0].startswith(COMMANDS[name].summary)


BLOCKED = """
import sys
blocked = {blocked!r}
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in blocked else found(name, package)
from packhorse.cli import main
sys.argv = ["packhorse", *{arguments!r}]
main()
"""


@pytest.mark.shelf
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["doctor", "--health"],
        ["audit", "few"],
        ["show", "few", "--id", "3"],
        ["stream", "few", "--limit", "1"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_trainer_s_install_has_what_asks_a_server(running_server, arguments):
    """Import blocking in a process of its own: nothing that only an extra installs may be touched."""
    blocked = {*EXTRAS["base"], "pyarrow", "highspy", "jinja2", "scipy", "datasets"}
    if arguments[0] != "--help":
        arguments = [*arguments, "--target", running_server.target]
    code = BLOCKED.format(blocked=blocked, arguments=arguments)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.shelf
@pytest.mark.parametrize(
    ("arguments", "missing", "extra"),
    [
        ("inspect lengths.parquet", "numba", "prepare"),
        ("inspect corpus.jsonl --tokenizer model", "numba, tokenizers", "prepare"),
        ("inspect s3://bucket/lengths.parquet", "numba", "prepare"),
        ("inspect prepared", "numba", "server"),
        ("show prepared --tokens tokens.parquet", "pyarrow", "client,arrow"),
        ("show prepared --tokens s3://bucket/corpus.idx", "fsspec", "stores"),
        ("audit prepared --tokens tokens.parquet", "torch", "client"),
        ("export prepared --format parquet --output out.parquet", "pyarrow", "prepare"),
        ("prepare --input lengths.parquet --max-seq-len 8 --output out", "numba", "prepare"),
        ("serve --data-root .", "numba, prometheus_client, grpc_reflection", "server"),
    ],
)
def test_a_bare_install_names_the_one_extra_that_a_call_lacks(tmp_path, corpus, arguments, missing, extra):
    """What people type first, where nothing but the base is installed: one line, no traceback, and nothing begun."""
    (tmp_path / "prepared").symlink_to(corpus.root / "few")
    for name in ("lengths.parquet", "tokens.parquet", "corpus.jsonl"):
        (tmp_path / name).write_bytes(b"")
    blocked = {*EXTRAS["base"], "pyarrow", "highspy", "jinja2", "scipy", "datasets", "fsspec"}
    code = BLOCKED.format(blocked=blocked, arguments=arguments.split())
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    *others, said = done.stderr.splitlines()
    assert others in ([], [f"{NO_NUMBA}; install it with: pip install 'packhorse[server]'"])
    assert said.startswith("Error: ")
    assert f"{missing} " in said or f"needs {missing};" in said
    assert said.endswith(f"install it with: pip install 'packhorse[{extra}]'")
    assert not list(tmp_path.glob("out*"))


NO_NUMBA = "Numba is not installed, so loops run uncompiled, 10 to 100 times slower"


@pytest.mark.shelf
def test_a_plot_without_matplotlib_is_refused_before_the_work(packhorse, corpus, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (tmp_path / "counts.json").write_text('{"5": 2}')
    plot = ["--plot", tmp_path / "plot.png"]
    for command in (
        ["inspect", corpus.root / "few"],
        ["plan", "compare", tmp_path / "counts.json", "--max-seq-len", "10"],
    ):
        result = packhorse(*command, *plot)
        assert result.exit_code == 1
        assert result.stdout == ""
        assert result.stderr == (
            "Error: matplotlib is needed here and not installed; install it with: pip install 'packhorse[demo]'\n"
        )
