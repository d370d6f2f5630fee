"""Rows that cannot be read or encoded: all of them named, or left out, counted and written down."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tests.flat_words import tokenize, tokenize_fine_tuning
from tests.shelf.tokenize.made import sequences
from tests.shelf.tokenize.small_tokenizers import byte_level, saved

from packhorse.tokenize import (
    ChatColumns,
    DocumentOptions,
    PairColumns,
    PreferenceColumns,
    Skipped,
    iterate_documents,
)
from packhorse.tokenize.commands.tokenize import command

_LINES = ['{"text": "one"}', "nonsense", '{"tex": 1}', '{"text": 5}', '{"text": " "}', "[1]", '{"text": "two"}']
_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}</s>{% endfor %}"


def _ledger(prefix: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in prefix.with_suffix(".skipped.jsonl").read_text().splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(byte_level(), tmp_path / "tok", chat_template=_TEMPLATE)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "c.jsonl"
    path.write_text("\n".join(_LINES))
    return path


def test_every_bad_line_is_named_not_only_the_first(folder: Path, corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as caught:
        tokenize(corpus, tmp_path / "x", tokenizer=folder)
    for said in (
        "line 2 is not JSON",
        "line 3 has no key 'text'; it has tex",
        "line 4: 'text' holds a number",
        "line 6",
    ):
        assert said in str(caught.value)
    assert "on_bad_row='skip'" in str(caught.value)
    assert not list(tmp_path.glob("x*"))


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_lines_are_left_out_counted_and_written_down(
    folder: Path, corpus: Path, tmp_path: Path, workers: int
) -> None:
    (tmp_path / "more.jsonl").write_bytes(b'{"text": "caf\xe9"}\n{"text": "three"}\n')
    summary = tokenize(
        [corpus, tmp_path / "more.jsonl"],
        tmp_path / "x",
        tokenizer=folder,
        on_bad_row="skip",
        workers=workers,
    )
    assert (summary.documents, summary.skipped_bad, summary.skipped_empty, summary.skipped_undecodable) == (3, 4, 1, 1)
    assert len(summary.bad_named) == 4
    assert summary.skipped_path == tmp_path / "x.skipped.jsonl"
    entries = [(Path(entry["row"]).name, entry["reason"]) for entry in _ledger(tmp_path / "x")]
    assert entries == [
        ("c.jsonl, line 2", "bad"),
        ("c.jsonl, line 3", "bad"),
        ("c.jsonl, line 4", "bad"),
        ("c.jsonl, line 5", "empty"),
        ("c.jsonl, line 6", "bad"),
        ("more.jsonl, line 1", "undecodable"),
    ]
    assert _ledger(tmp_path / "x")[0]["why"] == "is not JSON: Expecting value at column 1"
    # Without a row left out, no ledger of before stays.
    (tmp_path / "good.jsonl").write_text('{"text": "one"}\n')
    again = tokenize(tmp_path / "good.jsonl", tmp_path / "x", tokenizer=folder, overwrite=True)
    assert again.skipped_path is None
    assert not (tmp_path / "x.skipped.jsonl").exists()


def test_keys_that_are_none_are_bad_rows(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"text": "a", "url": null}\n{"text": "b", "url": "b"}\n')
    with pytest.raises(ValueError, match="'url' is null"):
        tokenize(path, tmp_path / "x", tokenizer=folder, id_column="url")
    summary = tokenize(path, tmp_path / "x", tokenizer=folder, id_column="url", on_bad_row="skip")
    assert (summary.documents, summary.skipped_bad) == (1, 1)


def test_an_iterator_of_documents_skips_or_refuses(corpus: Path) -> None:
    skipped = Skipped()
    assert list(iterate_documents([corpus], DocumentOptions(on_bad_row="skip"), skipped)) == ["one", "two"]
    assert (skipped.bad, skipped.empty) == (4, 1)
    with pytest.raises(ValueError, match=r"line 2 is not JSON.*Bad rows too: .*line 6"):
        list(iterate_documents([corpus]))
    with pytest.raises(ValueError, match="on_bad_row is 'drop'"):
        DocumentOptions(on_bad_row="drop")  # type: ignore[arg-type]


def _chat(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": content}]}


def test_bad_chats_are_left_out_by_name_in_every_form(folder: Path, tmp_path: Path) -> None:
    rows = [_chat("ok"), _chat(None), {"messages": 7}, {"messages": []}, _chat("fine"), {"other": 1}, {"messages": "{"}]
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "broken\n")
    with pytest.raises(ValueError, match=r"line 2: .*Bad rows too: .*line 3: .*line 6 has no key 'messages'.*line 7"):
        tokenize_fine_tuning(path, tmp_path / "x", ChatColumns(), tokenizer=folder)
    summary = tokenize_fine_tuning(path, tmp_path / "x", ChatColumns(), tokenizer=folder, on_bad_row="skip")
    assert (summary.sequences, summary.skipped_bad, summary.skipped_empty) == (2, 5, 1)
    assert [entry["row"][-1] for entry in _ledger(tmp_path / "x")] == ["2", "3", "4", "6", "7", "8"]
    assert len(sequences(tmp_path / "x.loss_mask")) == 2

    path.write_text('{"prompt": "a", "response": "b"}\n{"prompt": 1, "response": "b"}\n{"prompt": "a"}\n')
    columns = PairColumns(prompt="prompt", response="response")
    pairs = tokenize_fine_tuning(path, tmp_path / "p", columns, tokenizer=folder, on_bad_row="skip")
    assert (pairs.sequences, pairs.skipped_bad) == (1, 2)

    path.write_text('{"chosen": "a b", "rejected": "a c"}\n{"chosen": "b", "rejected": "c"}\n')
    both = tokenize_fine_tuning(path, tmp_path / "q", PreferenceColumns(), tokenizer=folder, on_bad_row="skip")
    assert (both.sequences, both.skipped_bad) == (2, 1)


def test_rows_of_tables_and_rows_without_targets_are_written_down(folder: Path, tmp_path: Path) -> None:
    chats = [_chat("ok")["messages"], [{"role": "user", "content": "only"}], [{"role": None, "content": "x"}]]
    pq.write_table(pa.table({"messages": chats}), tmp_path / "c.parquet")
    flags = ["--input", str(tmp_path / "c.parquet"), "--messages-column", "messages", "--tokenizer", str(folder)]
    flags += ["--output", str(tmp_path / "x"), "--on-bad-row", "skip", "--no-targets", "drop"]
    told = CliRunner().invoke(command, flags)
    assert told.exit_code == 0, told.output
    assert "skipped, bad          1" in told.output
    assert "bad, e.g. " in told.output
    assert "x.skipped.jsonl" in told.output
    entries = {entry["row"].rpartition(", ")[2]: entry["reason"] for entry in _ledger(tmp_path / "x")}
    assert entries == {"row 1": "no_targets", "row 2": "bad"}
    facts = json.loads(CliRunner().invoke(command, [*flags, "--overwrite", "--json"]).output)
    assert (facts["skipped_bad"], facts["dropped_no_targets"], facts["sequences"]) == (1, 1, 1)


def test_only_bad_rows_name_the_first(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"txt": "a"}\n')
    with pytest.raises(ValueError, match=r"1 bad were skipped .*line 1 has no key 'text'"):
        tokenize(path, tmp_path / "x", tokenizer=folder, on_bad_row="skip")


def test_a_pattern_that_the_shell_expanded_works_and_a_stray_word_gets_a_hint(folder: Path, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": name}) + "\n")
    names = [str(tmp_path / f"{name}.jsonl") for name in ("a", "b", "c")]
    shared = ["--tokenizer", str(folder), "--output", str(tmp_path / "x"), "--no-eos"]
    done = CliRunner().invoke(command, ["--input", *names, *shared])
    assert done.exit_code == 0, done.output
    assert len(sequences(tmp_path / "x")) == 3
    done = CliRunner().invoke(command, ["--input", names[0], "all", *shared])
    assert done.exit_code == 2
    assert "unexpected extra argument 'all'" in " ".join(done.output.split())
    assert "'*.jsonl'" in done.output
