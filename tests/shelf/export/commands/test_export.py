"""`packhorse export`: the lines of `stream` in a file."""


def test_export_writes_the_lines_of_stream(packhorse, json_lines, target, tmp_path):
    run = ["rows", "--target", target, "--epoch", 1, "--seed", 3]
    result = packhorse("export", *run, "--format", "jsonl", "--output", tmp_path / "plan.jsonl")
    assert result.exit_code == 0, result.stderr
    streamed = json_lines(packhorse("stream", *run).stdout)
    assert json_lines((tmp_path / "plan.jsonl").read_text()) == [
        {name: value for name, value in line.items() if name not in ("step", "slot")} for line in streamed
    ]
    again = packhorse("export", *run, "--format", "jsonl", "--output", tmp_path / "plan.jsonl")
    assert again.exit_code == 1
    assert "already there" in again.stderr


def test_tokens_come_from_the_server(packhorse, target, tmp_path):
    run = ["rows", "--target", target, "--format", "jsonl", "--output", tmp_path / "plan.jsonl"]
    result = packhorse("export", *run, "--tokens", "server")
    assert result.exit_code == 1
    assert "the tokens of 'rows' are not served" in result.stderr
    assert not list(tmp_path.iterdir())
