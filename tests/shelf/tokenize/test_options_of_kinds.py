"""Every option for every kind of input and form of sequence: it does what it says, or is refused by its name."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from tests.shelf.tokenize.made import sequences
from tokenizers import Tokenizer

from packhorse.cli import main
from packhorse.tokenize.commands.tokenize import command

KINDS = ("text", "folder", "jsonl", "parquet")
FORMS = {
    "text": [],
    "chats": ["--messages-column", "messages"],
    "pairs": ["--prompt-column", "q", "--response-column", "r"],
}
OF_USE = {
    ("--documents", "line"): {("text", "text"), ("text", "folder")},
    ("--documents", "paragraph"): {("text", "text"), ("text", "folder")},
    ("--documents", "file"): {("text", "text"), ("text", "folder")},
    ("--text-column", "body"): {("text", "jsonl"), ("text", "parquet")},
    ("--glob", "a*"): {("text", "folder")},
    ("--undecodable", "skip"): {(form, kind) for form in FORMS for kind in KINDS},
    ("--bos", "[CLS]"): {("text", kind) for kind in KINDS},
    ("--eos", "<eos>"): {(form, kind) for form in ("text", "pairs", "chats") for kind in KINDS},
    ("--no-eos",): {(form, kind) for form in ("text", "pairs") for kind in KINDS},
    ("--tools-column", "tools"): {("chats", kind) for kind in KINDS},
    ("--train-turns", "last"): {("chats", kind) for kind in KINDS},
    ("--train-turns", "all"): {("chats", kind) for kind in KINDS},
    ("--chat-template", "other.jinja"): {("chats", kind) for kind in KINDS},
    ("--template-option", "shout=true"): {("chats", kind) for kind in KINDS},
    ("--cutoff-len", "12"): {(form, kind) for form in ("chats", "pairs") for kind in KINDS},
    ("--no-targets", "drop"): {(form, kind) for form in ("chats", "pairs") for kind in KINDS},
    ("--no-targets", "error"): {(form, kind) for form in ("chats", "pairs") for kind in KINDS},
    ("--vocab-size", "300"): set(),
}
"""Option → the forms and kinds of input that it is for; with --tokenizer, so that the size of a vocabulary is not."""
NOT_UTF8 = b"a \xff b"


@pytest.fixture
def kinds(local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """One input of every kind with the same contents and something that is not UTF-8; the tokenizer in model/."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.jinja").write_text("{% for m in messages %}{{ m.role }} {{ m.content }} <eos> {% endfor %}")
    model = tmp_path / "model"
    model.mkdir()
    words = Tokenizer.from_file(str(local))
    words.post_processor = None
    words.save(str(model / "tokenizer.json"))
    (model / "tokenizer_config.json").write_text('{"eos_token": "<eos>"}')
    (model / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role }} {{ m.content }} b <eos> {% endfor %}{% if tools %}b b{% endif %}"
        "{% if shout %}b{% endif %}"
    )
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("a.txt", "folder/a.txt", "folder/z.txt"):
        (tmp_path / name).write_text("a b\na\n\nb b b")
    (tmp_path / "bad.txt").write_bytes(NOT_UTF8)
    (folder / "bad.txt").write_bytes(NOT_UTF8)
    turns = [("user", "a a"), ("assistant", "b"), ("user", "a"), ("assistant", "b b")]
    messages = json.dumps([{"role": role, "content": content} for role, content in turns])
    muted = json.dumps([{"role": "user", "content": "a"}])
    row = {"text": "a", "body": "b b", "messages": messages, "tools": '[{"name": "f"}]', "q": "a " * 12, "r": "b b b"}
    rows = [row, {**row, "messages": muted, "r": ""}, dict.fromkeys(row, "\udcff")]
    lines = [json.dumps(some, ensure_ascii=False).encode(errors="surrogateescape") for some in rows]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    columns = {}
    for name in row:
        cells = pa.array([some[name].encode(errors="surrogateescape") for some in rows], pa.binary())
        columns[name] = pa.Array.from_buffers(pa.string(), len(rows), cells.buffers())
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    return {
        "text": tmp_path / "*.txt",
        "folder": folder,
        "jsonl": tmp_path / "a.jsonl",
        "parquet": tmp_path / "a.parquet",
    }


def run_command(kinds: dict[str, Path], form: str, kind: str, output: str, *option: str) -> Result:
    flags = ["--input", str(kinds[kind]), "--output", output, "--tokenizer", "model", *FORMS[form]]
    if form == "text" and kind in ("jsonl", "parquet") and "--text-column" not in option:
        flags += ["--text-column", "text"]  # the rows have columns of every form
    if form != "text" and "--no-targets" not in option:
        flags += ["--no-targets", "drop"]
    return CliRunner().invoke(main, ["tokenize", *flags, *option])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("option", OF_USE, ids=" ".join)
def test_an_option_does_what_it_says_or_is_refused(
    kinds: dict[str, Path], form: str, kind: str, option: tuple[str, ...]
) -> None:
    """Of use: it changes what is written, unless it says what is done anyhow. Else it is refused, by its name."""
    result = run_command(kinds, form, kind, "x", *option)
    if form != "text" and kind in ("text", "folder"):
        assert result.exit_code != 0
        assert "has no rows" in result.output or option[0] in result.output
        return
    if (form, kind) not in OF_USE[option]:
        assert result.exit_code != 0, result.output
        assert option[0] in result.output
        assert not list(Path().glob("x.*"))
        return
    if option == ("--no-targets", "error") and form == "chats":  # a pair without a response still has its end
        assert result.exit_code == 1
        assert "--no-targets drop" in result.output
        return
    assert result.exit_code == 0, result.output
    assert run_command(kinds, form, kind, "y").exit_code == 0
    same = option[1:] in (("skip",), ("file",), ("all",), ("drop",), ("error",), ("<eos>",), ("tools",))
    assert (written(Path("x")) == written(Path("y"))) == same


def written(prefix: Path) -> list[list[list[int]]]:
    return [sequences(path.with_suffix("")) for path in sorted(Path().glob(f"{prefix}*.idx"))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_text_that_is_not_utf8_is_counted_or_refused_in_every_kind(
    kinds: dict[str, Path], form: str, kind: str
) -> None:
    if form != "text" and kind in ("text", "folder"):
        return
    result = run_command(kinds, form, kind, "x", "--undecodable", "error")
    assert result.exit_code == 1
    assert "is not UTF-8" in result.output
    assert "--undecodable skip" in result.output
    result = run_command(kinds, form, kind, "x", "--undecodable", "skip")
    assert result.exit_code == 0, result.output
    assert re.search(r"skipped, undecodable +1\b", result.output)


def test_a_tools_column_that_no_line_has_is_refused(kinds: dict[str, Path]) -> None:
    result = run_command(kinds, "chats", "jsonl", "x", "--tools-column", "tols")
    assert result.exit_code == 1
    assert "a.jsonl has the key 'tols'" in result.output
    assert not list(Path().glob("x.*"))


@pytest.mark.parametrize("documents", ["line", "paragraph", "file"])
def test_documents_of_a_folder_are_those_of_its_files(kinds: dict[str, Path], documents: str) -> None:
    for name, source in (("x", "folder/a.txt"), ("y", "folder")):
        flags = ["--input", source, "--output", name, "--tokenizer", "model", "--documents", documents]
        assert CliRunner().invoke(command, flags).exit_code == 0
    assert sequences(Path("y")) == 2 * sequences(Path("x"))
    assert len(sequences(Path("x"))) == {"line": 3, "paragraph": 2, "file": 1}[documents]
