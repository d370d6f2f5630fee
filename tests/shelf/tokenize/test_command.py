"""`packhorse tokenize`: it writes what `tokenize` writes, and its flags have help and go together."""

import struct
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from tests.shelf.tokenize.made import sequences

from packhorse.tokenize import tokenize
from packhorse.tokenize.commands.tokenize import command


def test_command_writes_the_same_files_and_prints_a_summary(corpus: Path, tmp_path: Path) -> None:
    flags = ["--input", str(corpus), "--output", str(tmp_path / "x"), "--train-tokenizer", "--vocab-size", "300"]
    result = CliRunner().invoke(command, flags, catch_exceptions=False)
    assert result.exit_code == 0
    summary = tokenize(corpus, tmp_path / "y", vocab_size=300)
    for suffix in (".bin", ".idx", ".tokenizer.json"):
        assert (tmp_path / f"x{suffix}").read_bytes() == (tmp_path / f"y{suffix}").read_bytes()
    assert f"{summary.tokens:,} (uint16)" in result.output
    assert str(tmp_path / "x.idx") in result.output
    assert "<|endoftext|>" in result.output


def test_command_takes_folders_and_several_inputs(local: Path, tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "a.py").write_text("a")
    (folder / "b.md").write_text("b")
    (folder / "c.py").write_bytes(struct.pack("<I", 0))
    (tmp_path / "lines.txt").write_text("b b\n\na a")
    flags = ["--input", str(folder), "--input", str(tmp_path / "l*.txt"), "--output", str(tmp_path / "x")]
    flags += ["--tokenizer", str(local), "--glob", "*.py", "--documents", "paragraph", "--eos", "<eos>"]
    result = CliRunner().invoke(command, flags, catch_exceptions=False)
    assert result.exit_code == 0
    assert sequences(tmp_path / "x") == [[9, 1, 3], [9, 2, 2, 3], [9, 1, 1, 3]]
    assert "c.py" in result.output


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "either --tokenizer FILE or --train-tokenizer"),
        (["--tokenizer", "t.json", "--train-tokenizer"], "either --tokenizer FILE or --train-tokenizer"),
        (["--tokenizer", "t.json", "--vocab-size", "300"], "--vocab-size goes with --train-tokenizer"),
        (["--train-tokenizer", "--eos", "x", "--no-eos"], "either --eos TOKEN or --no-eos"),
    ],
)
def test_command_refuses_flags_that_do_not_go_together(flags: list[str], message: str) -> None:
    result = CliRunner().invoke(command, ["--input", "i", "--output", "o", *flags])
    assert result.exit_code == 2
    assert message in result.output


def test_every_flag_of_the_command_has_help() -> None:
    assert [
        option.name
        for option in command.params
        if isinstance(option, click.Option) and not getattr(option, "help", None)
    ] == []
