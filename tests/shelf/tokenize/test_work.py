"""Work in parts: the same files with any number of workers, resumed or not, and what an interruption leaves."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.flat_words import tokenize, tokenize_fine_tuning
from tokenizers import Tokenizer, models, pre_tokenizers

from packhorse.storage import hold_lock
from packhorse.tokenize import ChatColumns, PairColumns, _work
from packhorse.tokenize.input import parts as _parts

ROWS = [{"text": "a b " * (i % 7 + 1), "q": "a " * (i % 5 + 1), "r": "b " * (i % 3 + 1)} for i in range(120)]
SUFFIXES = (".bin", ".idx", ".tokenizer.json")

Make = Callable[..., Any]


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rows of text and of pairs, cut into parts of a few rows, and a tokenizer beside them."""
    monkeypatch.setattr(_parts, "_LEAST_PART_BYTES", 800)
    words = Tokenizer(models.WordLevel({"?": 0, "a": 1, "b": 2, "<end>": 3, "<begin>": 4}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens(["<end>", "<begin>"])
    words.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    return path


@pytest.fixture(params=["text", "trained", "pairs"])
def make(request: pytest.FixtureRequest, rows: Path) -> Make:
    """Tokenizes the rows to a name."""

    def text(name: str, **options: Any) -> Any:
        return tokenize(rows, rows.parent / name, tokenizer=rows.parent, progress=False, **options)

    def trained(name: str, **options: Any) -> Any:
        return tokenize(rows, rows.parent / name, vocab_size=280, progress=False, **options)

    def pairs(name: str, **options: Any) -> Any:
        columns = PairColumns(prompt="q", response="r")
        return tokenize_fine_tuning(rows, rows.parent / name, columns, tokenizer=rows.parent, progress=False, **options)

    return {"text": text, "trained": trained, "pairs": pairs}[request.param]


def contents(folder: Path, name: str) -> dict[str, bytes]:
    files = [path for path in folder.iterdir() if path.name.startswith(f"{name}.")]
    return {path.name.removeprefix(name): path.read_bytes() for path in files}


class Interrupted(BaseException):
    """As Ctrl-C, a full disk or a crash would."""


def interrupt(monkeypatch: pytest.MonkeyPatch, *, after: int) -> list[int]:
    """Makes every part from some number on fail; returns the numbers of parts that are begun."""
    begun: list[int] = []
    run = _work._run

    def failing(task: Any) -> Any:
        begun.append(int(task.prefix.name))
        if begun[-1] >= after:
            raise Interrupted
        return run(task)

    monkeypatch.setattr(_work, "_run", failing)
    return begun


def test_an_interrupted_run_is_gone_on_with(make: Make, rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = make("whole")
    with monkeypatch.context() as patched:
        interrupt(patched, after=3)
        with pytest.raises(Interrupted):
            make("x")
    assert not list(rows.parent.glob("x.bin"))
    assert (rows.parent / "x.tokenizing").is_dir()
    with pytest.raises(
        FileExistsError, match=r"x\.tokenizing holds the finished parts .* resume=True, .* overwrite=True"
    ):
        make("x")
    with monkeypatch.context() as patched:
        begun = interrupt(patched, after=10**6)
        summary = make("x", resume=True)
    assert begun[0] == 3
    assert len(begun) > 2
    found = contents(rows.parent, "x")
    assert found == contents(rows.parent, "whole")
    assert len(found) >= 4
    for name in ("tokens", "longest", "skipped_empty", "dtype"):
        assert getattr(summary, name) == getattr(expected, name)


def test_files_of_a_call_that_was_killed_while_it_named_them_are_no_obstacle(
    make: Make, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("whole")
    with monkeypatch.context() as patched:
        patched.setattr(_work.shutil, "rmtree", lambda *_, **__: None)  # the last thing that a call does
        make("x")
    (rows.parent / "x.idx").unlink()  # named after the others
    with pytest.raises(FileExistsError, match=r"x\.\S+ is already there"):
        make("x")
    with monkeypatch.context() as patched:
        assert not interrupt(patched, after=0)
        make("x", resume=True)
    assert contents(rows.parent, "x") == contents(rows.parent, "whole")
    assert not (rows.parent / "x.tokenizing").exists()
    with pytest.raises(FileExistsError, match="is already there"):
        make("x", resume=True)  # which has nothing left to do


def test_another_job_is_not_gone_on_with(make: Make, rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        interrupt(patched, after=2)
        with pytest.raises(Interrupted):
            make("x")
    with pytest.raises(ValueError, match=r"interrupted call: undecodable was skip and is error\. Give"):
        make("x", resume=True, undecodable="error")
    before = rows.read_bytes()
    rows.write_bytes(before + b"\n" + before)
    with pytest.raises(ValueError, match=r"rows\.jsonl changed since\. .* overwrite=True and without resume=True"):
        make("x", resume=True)
    make("x", overwrite=True)
    make("y")
    assert contents(rows.parent, "x") == contents(rows.parent, "y")
    assert not (rows.parent / "x.tokenizing").exists()


def test_resume_begins_where_nothing_was_begun(make: Make, rows: Path) -> None:
    make("x", resume=True)
    make("y")
    assert contents(rows.parent, "x") == contents(rows.parent, "y")


def test_a_wrong_row_leaves_nothing_even_behind_finished_parts(make: Make, rows: Path) -> None:
    rows.write_bytes(rows.read_bytes() + b"\n{broken")
    before = sorted(rows.parent.iterdir())
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 121 is not JSON"):
        make("x")
    assert sorted(rows.parent.iterdir()) == before


def test_an_input_that_changes_while_it_is_read_is_refused(
    make: Make, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _work._run

    def changing(task: Any) -> Any:
        tally = run(task)
        with rows.open("ab") as file:
            file.write(b"\n")
        return tally

    monkeypatch.setattr(_work, "_run", changing)
    with pytest.raises(ValueError, match=r"changed while it was read: .*rows\.jsonl changed since; run it again"):
        make("x")
    assert not list(rows.parent.glob("x.*"))


def test_two_writers_keep_apart(rows: Path) -> None:
    folder = rows.parent / "x.tokenizing"
    folder.mkdir()
    is_busy = pytest.raises(BlockingIOError, match=r"process \d+ on .* is writing to .*x\.tokenizing")
    with hold_lock(folder / "lock"), is_busy:
        tokenize(rows, rows.parent / "x", tokenizer=rows.parent, progress=False)
    tokenize(rows, rows.parent / "x", tokenizer=rows.parent, progress=False)


def test_a_folder_of_somebody_else_is_left_alone(rows: Path) -> None:
    folder = rows.parent / "x.tokenizing"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="holds files that tokenizing did not write"):
        tokenize(rows, rows.parent / "x", tokenizer=rows.parent, progress=False, overwrite=True)
    assert (folder / "mine.txt").read_text() == "mine"


def test_any_number_of_workers_writes_the_same(rows: Path) -> None:
    """Both forms and both ways to have a tokenizer, each in processes of its own."""
    tokenize(rows, rows.parent / "x", vocab_size=280, bos="<s>", progress=False, workers=1)
    tokenize(rows, rows.parent / "y", vocab_size=280, bos="<s>", progress=False, workers=3)
    assert contents(rows.parent, "x") == contents(rows.parent, "y")
    (rows.parent / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role }} {{ m.content }} <end> {% endfor %}{% if b %}b{% endif %}"
    )
    chats = rows.parent / "chats.jsonl"
    turns = [[{"from": "human", "value": row["q"]}, {"from": "gpt", "value": row["r"]}] for row in ROWS]
    chats.write_text("\n".join(json.dumps({"conversations": chat}) for chat in turns))
    columns = ChatColumns(messages="conversations", template_options={"b": True})
    for name, workers in (("one", 1), ("two", 2)):
        summary = tokenize_fine_tuning(
            chats, rows.parent / name, columns, tokenizer=rows.parent, progress=False, workers=workers
        )
        assert summary.sequences == len(ROWS)
    found = contents(rows.parent, "one")
    assert found == contents(rows.parent, "two")
    assert len(found) == 8, "with what is not in the tokens, and how rows became sequences"


def test_a_description_that_was_half_written_when_the_process_was_killed_is_no_obstacle(make: Make, rows: Path) -> None:
    folder = rows.parent / "a.tokenizing"
    folder.mkdir()
    for name in ("job.partial", "lock"):
        (folder / name).touch()
    make("a")
    assert not folder.exists()


def test_a_full_disk_is_named_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("a")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("packhorse.formats.MegatronWriter.append_many", full)
    with pytest.raises(OSError, match=rf"{tmp_path} has too little space for x.*run it again") as caught:
        tokenize(tmp_path / "a.txt", tmp_path / "x", vocab_size=300, progress=False)
    assert caught.value.errno == errno.ENOSPC
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
