"""Commands against a real server: their lines, their exit statuses, and failures in one line."""

import os
import re
import signal
import subprocess
import sys
from collections import Counter

import click
import pytest
from tests import commands

from packhorse.cli import COMMANDS, main
from packhorse.packing import DEFAULT_TIME_LIMIT_SECONDS
from packhorse.topology import Skips, Topology


@pytest.mark.shelf
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(packhorse, command):
    result = packhorse(command, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage:")
    assert "-h, --help" in result.stdout or "--help" in result.stdout


@pytest.mark.shelf
def test_every_option_has_help_and_every_command_a_sentence():
    context = click.Context(main)
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command.help.partition("\n")[0].endswith("."), name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{name} {parameter.opts}"


def test_the_help_says_how_long_planning_may_take(packhorse):
    words = " ".join(packhorse("prepare", "--help").stdout.split())
    assert f"Time limit for planning, {DEFAULT_TIME_LIMIT_SECONDS:g} s by default" in words


@pytest.mark.parametrize("group", ["plan", "mixture", "token"])
def test_no_line_about_a_subcommand_is_cut(packhorse, group):
    assert "..." not in packhorse(group, "--help").stdout.partition("Commands:")[2]


def test_every_flag_of_serve_is_an_environment_variable():
    serve = main.get_command(click.Context(main), "serve")
    for option in serve.params:
        assert option.envvar == "PACKHORSE_" + option.opts[0].removeprefix("--").upper().replace("-", "_")


@pytest.mark.shelf
def test_the_group_lists_its_commands(packhorse):
    result = packhorse("--help")
    for command in COMMANDS:
        assert f"\n  {command} " in result.stdout
    assert re.fullmatch(r"packhorse \d+\.\d+\.\d+ \(protocol \d+, folder format \d+\)\n", packhorse("--version").stdout)
    assert packhorse("nothing").exit_code == 2


def test_stream_prints_every_bin_of_a_worker(packhorse, json_lines, target, client, bins_of_stream):
    topology = {"world_size": 2, "workers_per_rank": 3, "batch_size": 2, "start_position": 5, "remainder": "empty"}
    place = {"rank": 1, "worker": 2, "epoch": 4, "seed": 9}
    flags = [part for name, value in (place | topology).items() for part in (f"--{name.replace('_', '-')}", value)]
    result = packhorse("stream", "--target", target, "rows", *flags)
    assert result.exit_code == 0
    expected = bins_of_stream(client.stream_bins("rows", topology=Topology(**topology), **place), 2, 3)
    lines = json_lines(result.stdout)
    assert len(lines) == len(expected) > 50
    assert [list(line) for line in lines[:1]] == [["step", "slot", "position", "ids", "lengths"]]
    for line, wanted in zip(lines, expected, strict=True):
        assert (line["step"], line["slot"], line["position"]) == (wanted.step, wanted.slot, wanted.position)
        assert (tuple(line["ids"]), tuple(line["lengths"])) == (wanted.ids, wanted.lengths)


def test_stream_independent_counts_its_own_steps(packhorse, json_lines, target):
    flags = ["--workers-per-rank", 3, "--worker", 1, "--mode", "independent", "--batch-size", 2]
    lines = json_lines(packhorse("stream", "--target", target, "rows", *flags).stdout)
    assert [line["step"] for line in lines[:6]] == [0, 0, 1, 1, 2, 2]
    assert Counter(i for line in lines for i in line["ids"]) == Counter(range(2000))


@pytest.mark.parametrize("limit", [0, 1, 7, 10**6])
def test_stream_stops_at_its_limit(packhorse, json_lines, corpus, target, limit):
    everything = packhorse("stream", "--target", target, "named").stdout
    for place in (target, f"embedded:{corpus.root}"):
        result = packhorse("stream", "--target", place, "named", "--limit", limit)
        assert result.stdout == "".join(everything.splitlines(keepends=True)[:limit])
        assert len(json_lines(result.stdout)) == min(limit, everything.count("\n"))


def test_stream_into_a_closed_pipe_ends_quietly(target):
    command = [sys.executable, "-m", "packhorse.cli", "stream", "--target", target, "rows"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 128 + signal.SIGPIPE


@pytest.mark.shelf
def test_locate_tells_where_an_id_comes(packhorse, json_lines, target, client):
    topology, place = {"world_size": 2, "batch_size": 3, "workers_per_rank": 2}, {"seed": 1, "epoch": 6}
    flags = [part for name, value in (place | topology).items() for part in (f"--{name.replace('_', '-')}", value)]
    result = packhorse("show", "--target", target, "rows", *flags, "--json", "--id", 17, "--id", 4)
    assert result.exit_code == 0
    lines = json_lines(result.stdout)
    expected = client.locate("rows", ids=[17, 4], topology=Topology(**topology), **place)
    assert [line["id"] for line in lines] == [17, 4]
    for line, location in zip(lines, expected, strict=True):
        assert line == {
            name: getattr(location, name) for name in location.__slots__ if name not in ("component", "key")
        }
    first = lines[0]
    stream = ["--rank", first["rank"], "--worker", first["worker"], *flags]
    delivered = json_lines(packhorse("stream", "--target", target, "rows", *stream).stdout)
    (found,) = [line for line in delivered if line["position"] == first["position"]]
    assert (found["step"], found["slot"]) == (first["step"], first["slot"])
    assert found["ids"][first["index_in_bin"]] == 17


@pytest.mark.shelf
def test_locate_unknown_ids_exits_with_1(packhorse, json_lines, target):
    result = packhorse("show", "--target", target, "rows", "--id", 17, "--id", 2000, "--id", -5)
    assert result.exit_code == 1
    assert result.stdout.count("not in the") == 2
    assert "17" in result.stdout
    result = packhorse("show", "--target", target, "rows", "--json", "--id", 2000)
    assert result.exit_code == 1
    assert json_lines(result.stdout)[0]["found"] is False


@pytest.mark.shelf
def test_long_ids_are_printed_whole(packhorse, corpus, target, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    ids = corpus.ids["named"][:3].tolist()
    result = packhorse("show", "--target", target, "named", "--world-size", 2, *(f"--id={one}" for one in ids))
    assert result.exit_code == 0
    for number in ids:
        assert str(number) in result.stdout


@pytest.mark.shelf
def test_health(packhorse, target, running_unix_server):
    result = packhorse("doctor", "--health", "--target", target)
    assert (result.exit_code, result.stdout) == (0, f"{target}: SERVING\n")
    assert packhorse("doctor", "--health", "--target", running_unix_server.target).exit_code == 0
    result = packhorse("doctor", "--health", "--target", "127.0.0.1:1", "--timeout-seconds", "0.3")
    assert result.exit_code == 1
    assert result.stderr.startswith("127.0.0.1:1: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.shelf
@pytest.mark.parametrize("seconds", ["1000", "inf"])
def test_health_tells_at_once_that_nobody_listens(packhorse, seconds):
    """It would time out otherwise, which pytest ends long before."""
    result = packhorse("doctor", "--health", "--target", "127.0.0.1:1", "--timeout-seconds", seconds)
    assert result.exit_code == 1
    assert "Connection refused" in result.stderr


@pytest.mark.shelf
def test_waits_may_be_endless(packhorse, target):
    assert packhorse("doctor", "--health", "--target", target, "--timeout-seconds", "inf").exit_code == 0
    assert packhorse("doctor", "--target", target, "--timeout-seconds", "inf").exit_code == 0
    assert (
        packhorse("top", "--target", target, "--once", "--interval", "0.1", "--timeout-seconds", "inf").exit_code == 0
    )


@pytest.mark.shelf
def test_output_may_be_closed(corpus):
    command = f"{sys.executable} -m packhorse.cli inspect {corpus.root}/few >&-"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=100)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.shelf
@pytest.mark.parametrize("closed", [("stdin", "stdout"), ("stdout", "stderr")], ids="-".join)
def test_so_may_be_the_other_streams(corpus, closed):
    """Python has None for a stream that is closed when it starts, which a forked process is past."""
    streams = "; ".join(f"sys.{name}.close(); sys.{name} = sys.__{name}__ = None" for name in closed)
    result = commands.run("inspect", corpus.root / "few", code=f"import sys; {streams}; {commands.PACKHORSE}")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.shelf
@pytest.mark.parametrize(
    "command", ["inspect {few}", "show {few}", "--version", "--help", "prepare --help", "token new --help"]
)
def test_a_reader_that_has_enough_is_no_failure(corpus, command):
    """As after `| head`: status 141, what SIGPIPE gives other programs, and not a word."""
    nobody_reads = "import os; reading, writing = os.pipe(); os.close(reading); os.dup2(writing, 1); os.close(writing)"
    arguments = command.format(few=corpus.root / "few").split()
    result = commands.run(*arguments, code=f"{nobody_reads}; {commands.PACKHORSE}")
    assert (result.returncode, result.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.shelf
@pytest.mark.parametrize("command", ["inspect", "show", "stream", "audit"])
def test_a_mistyped_folder_does_not_wait_for_a_server_that_nothing_names(packhorse, command, monkeypatch):
    (target,) = (each for each in main.get_command(click.Context(main), command).params if each.name == "target")
    monkeypatch.setattr(target, "default", "127.0.0.1:1")
    result = packhorse(command, "datasts")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: there is no prepared folder datasts here, and no server to ask for it: ")
    assert result.stderr.endswith("(is a server listening there?)\n")
    assert result.stderr.count("\n") == 1
    named = packhorse(command, "datasts", "--target", "127.0.0.1:1", "--timeout-seconds", "0.3")
    assert "trying again for up to 0.3 s" in named.stderr


@pytest.mark.shelf
@pytest.mark.parametrize("path", ["no/such/folder", "./folder"])
def test_commands_say_alike_that_a_folder_is_missing(packhorse, path):
    for command in ("show", "stream", "export"):
        flags = ["--format", "jsonl", "--output", "x"] if command == "export" else []
        result = packhorse(command, path, *flags)
        assert (result.exit_code, result.stderr) == (
            1,
            f"Error: {path} is not a folder; `packhorse prepare` writes one\n",
        )
    inspected = packhorse("inspect", path)
    assert (inspected.exit_code, inspected.stderr.replace("./", "")) == (1, result.stderr.replace("./", ""))


@pytest.mark.shelf
def test_terminals_of_few_characters_show_the_rest(target):
    command = [sys.executable, "-m", "packhorse.cli", "doctor", "--target", target]
    result = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "latin-1"}, timeout=100)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(b"? DNS")


def test_errors_of_the_system_name_the_file(packhorse, tmp_path):
    result = packhorse("token", "new", "a", "--token-file", tmp_path / "nothing" / "tokens")
    assert result.exit_code == 1
    assert result.stderr == f"Error: {tmp_path}/nothing/tokens: No such file or directory\n"


@pytest.mark.shelf
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stream", "nothing"], "no dataset is named 'nothing'; this server has: few, named"),
        (["stream", "rows", "--rank", "5"], "rank"),
        (["stream", "rows", "--start-position", "1000000"], "--start-position"),
        (["stream", "rows", "--seed", str(2**64)], "seed"),
        (["audit", "nothing"], "no dataset is named 'nothing'"),
        (["audit", "rows", "--start-position", "1000000"], "--start-position"),
        (["show", "nothing", "--id", "1"], "no dataset is named 'nothing'"),
        (["show", "rows", "--id", str(2**70)], "ids"),
    ],
    ids=str,
)
def test_errors_are_one_line(packhorse, corpus, target, arguments, message):
    for place in (target, f"embedded:{corpus.root}"):
        result = packhorse(*arguments, "--target", place)
        assert result.exit_code == 1
        assert result.stdout == ""
        assert result.stderr.startswith("Error: ")
        assert result.stderr.count("\n") == 1
        assert message in result.stderr


@pytest.mark.shelf
@pytest.mark.parametrize("command", ["stream", "audit"])
def test_an_embedded_folder_that_is_none(packhorse, command, tmp_path):
    result = packhorse(command, "x", "--target", f"embedded:{tmp_path}/nothing")
    assert result.exit_code == 1
    assert result.stderr == f"Error: data root {tmp_path}/nothing is not a folder\n"


@pytest.mark.shelf
def test_stream_and_locate_with_a_balance_and_skips(packhorse, json_lines, target, client, bins_of_stream):
    topology = {"world_size": 2, "batch_size": 3, "accumulation": 4, "balance": "optimizer-step", "cost_linear": 50}
    flags = [part for name, value in topology.items() for part in (f"--{name.replace('_', '-')}", value)]
    flags += ["--skip", "10:12", "--skip", "30:40,12:14", "rows", "--target", target]
    skip, shape = Skips.parse(["10:14,30:40"]), Topology(**topology)
    expected = bins_of_stream(client.stream_bins("rows", rank=1, topology=shape, skip=skip), 3)
    lines = json_lines(packhorse("stream", "--rank", 1, *flags).stdout)
    assert [(line["step"], line["slot"], line["position"], tuple(line["ids"])) for line in lines] == [
        (one.step, one.slot, one.position, one.ids) for one in expected
    ]
    ids = [int(client.get_bins("rows", positions=[position]).ids[0]) for position in (3, 11, 20)]
    result = packhorse("show", *flags, "--json", *(f"--id={one}" for one in ids))
    assert result.exit_code == 0
    locations = client.locate("rows", ids=ids, topology=shape, skip=skip)
    assert [location.position for location in locations] == [3, -1, 16]
    for line, location in zip(json_lines(result.stdout), locations, strict=True):
        assert line == {
            name: getattr(location, name) for name in location.__slots__ if name not in ("component", "key")
        }
    (row,) = (
        row
        for row in packhorse("show", *flags, *(f"--id={one}" for one in ids)).stdout.splitlines()
        if "left out" in row
    )
    assert str(ids[1]) in row


@pytest.mark.shelf
@pytest.mark.parametrize("command", ["stream", "audit", "show"])
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--skip", "5"], "--skip '5' is not FIRST:END, e.g. 1200:1300"),
        (["--skip", "5:5"], "--skip 5:5 is empty"),
        (["--balance", "step"], "'step' is not one of 'none', 'micro-step', 'optimizer-step'"),
        (["--accumulation", "0"], "--accumulation"),
        (["--cost-linear", "-1"], "--cost-linear"),
    ],
)
def test_shapes_that_are_none(packhorse, target, command, flags, message):
    ids = ["--id", 7] if command == "show" else []
    result = packhorse(command, "--target", target, "rows", *flags, *ids)
    assert result.exit_code == 2
    assert message in result.stderr


def test_independent_streams_cannot_be_balanced(packhorse, target):
    flags = ["--mode", "independent", "--balance", "micro-step"]
    result = packhorse("stream", "--target", target, "rows", *flags)
    assert result.exit_code == 2
    assert "--balance must be none where mode is independent" in result.stderr


@pytest.mark.parametrize(("typed", "meant"), [("prepar", "prepare"), ("inspct", "inspect"), ("sever", "serve")])
def test_a_mistyped_command_is_told_the_one_that_is_meant(packhorse, typed, meant):
    result = packhorse(typed)
    assert result.exit_code == 2
    assert f"No such command '{typed}'. Did you mean {meant}" in result.stderr


def test_a_command_like_no_other_is_refused_plainly(packhorse):
    assert "No such command 'xyzzy'." in packhorse("xyzzy").stderr


def test_python_runs_the_package(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "packhorse", "--version"], capture_output=True, text=True, cwd=tmp_path
    )
    assert result.stdout.startswith("packhorse ")


@pytest.mark.shelf
def test_help_is_narrow():
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        for each in (command, *getattr(command, "commands", {}).values()):
            lines = each.get_help(click.Context(each, info_name=name)).splitlines()
            assert max(map(len, lines)) <= 100, name
