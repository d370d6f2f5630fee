"""The command line in every install: what is missing is named, with its extra, before any work."""

import json
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


def test_the_list_of_commands_imports_none_of_their_packages():
    code = (
        "import sys; from packhorse.cli import main; main(['--help'], standalone_mode=False)\n"
        "print(*sorted(name for name in sys.modules if name.startswith('packhorse.')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    listed = [line.split()[0] for line in done.stdout.partition("Commands:")[2].splitlines() if line[2:3].strip()]
    assert listed == [name for name, command in COMMANDS.items() if command.is_there]
    assert "prepare" in listed
    assert "packhorse.cli" in done.stderr.split()
    assert not [name for name in done.stderr.split() if name.split(".")[1] not in ("cli", "parameters", "shelf")]


BLOCKED = """
import json, os, sys, tempfile
blocked, commands = json.load(sys.stdin)
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in blocked else found(name, package)
from packhorse.cli import main
import packhorse.client, packhorse.dataset
ends = []
for arguments in commands:
    written = [tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")]
    pid = os.fork()
    if pid == 0:
        for number, file in enumerate(written, 1):
            os.dup2(file.fileno(), number)
        sys.argv = ["packhorse", *arguments]
        main()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for file in written:
        file.seek(0)
    ends.append([status, *(file.read() for file in written)])
print(json.dumps(ends))
"""


def run_without(blocked, commands, folder):
    """(status, stdout, stderr) of each command, forked from one process that finds none of these modules."""
    asked = json.dumps([sorted(blocked), commands])
    command = [sys.executable, "-c", BLOCKED]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=300, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.shelf
def test_a_trainer_s_install_has_what_asks_a_server(running_server, tmp_path):
    """Import blocking in a process of its own: nothing that only an extra installs may be touched."""
    blocked = {*EXTRAS["base"], "pyarrow", "highspy", "jinja2", "scipy", "datasets"}
    asking = ("doctor --health", "audit few", "show few --id 3", "stream few --limit 1")
    commands = [["--help"], *([*each.split(), "--target", running_server.target] for each in asking)]
    for command, (status, out, err) in zip(commands, run_without(blocked, commands, tmp_path), strict=True):
        assert status == 0, (command, err)
        assert out, command


LACKING = {  # what people type first: the modules and the extra that it lacks
    "inspect lengths.parquet": ("numba", "prepare"),
    "inspect corpus.jsonl --tokenizer model": ("numba, tokenizers", "prepare"),
    "inspect s3://bucket/lengths.parquet": ("numba", "prepare"),
    "inspect prepared": ("numba", "server"),
    "show prepared --tokens tokens.parquet": ("pyarrow", "client,arrow"),
    "show prepared --tokens s3://bucket/corpus.idx": ("fsspec", "stores"),
    "audit prepared --tokens tokens.parquet": ("torch", "client"),
    "export prepared --format parquet --output out.parquet": ("pyarrow", "prepare"),
    "prepare --input lengths.parquet --max-seq-len 8 --output out": ("numba", "prepare"),
    "serve --data-root .": ("numba, prometheus_client, grpc_reflection", "server"),
}


@pytest.fixture(scope="module")
def bare(tmp_path_factory, corpus):
    """Command → its end where nothing but the base is installed, in a folder where its inputs are; that folder."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "prepared").symlink_to(corpus.root / "few")
    for name in ("lengths.parquet", "tokens.parquet", "corpus.jsonl"):
        (folder / name).write_bytes(b"")
    blocked = {*EXTRAS["base"], "pyarrow", "highspy", "jinja2", "scipy", "datasets", "fsspec"}
    ends = run_without(blocked, [each.split() for each in LACKING], folder)
    return dict(zip(LACKING, ends, strict=True)), folder


@pytest.mark.shelf
@pytest.mark.parametrize("arguments", LACKING)
def test_a_bare_install_names_the_one_extra_that_a_call_lacks(bare, arguments):
    """One line, no traceback, and nothing begun."""
    ends, folder = bare
    missing, extra = LACKING[arguments]
    status, out, err = ends[arguments]
    assert (status, out) == (1, "")
    *others, said = err.splitlines()
    assert others in ([], [f"{NO_NUMBA}; install it with: pip install 'packhorse[server]'"])
    assert said.startswith("Error: ")
    assert f"{missing} " in said or f"needs {missing};" in said
    assert said.endswith(f"install it with: pip install 'packhorse[{extra}]'")
    assert not list(folder.glob("out*"))


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
