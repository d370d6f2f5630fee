"""Rows as `--show` prints them, and sequences as `show --id` does: what is trained stands in [[ ]]."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tests.flat_words import prepare
from tests.shelf.tokenize.small_tokenizers import byte_level, saved

from packhorse.formats import MegatronTokens, write_flat_tokens
from packhorse.pictures import MarkedRange, MarkedSequence
from packhorse.pictures.commands.show import command as show
from packhorse.tokenize import trace_sequence
from packhorse.tokenize.commands.tokenize import command

_TEMPLATE = "{% for m in messages %}{{ m.role }}:{{ m.content }}</s>{% endfor %}"


def _flags(tmp_path: Path) -> list[str]:
    folder = saved(byte_level(), tmp_path / "tok", chat_template=_TEMPLATE)
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "fox"}]
    rows = [{"messages": chat}, {"messages": 7}, {"messages": chat}]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["--input", str(tmp_path / "c.jsonl"), "--messages-column", "messages", "--tokenizer", str(folder)]


def test_rows_are_shown_before_anything_is_written(tmp_path: Path) -> None:
    flags = _flags(tmp_path)
    there = sorted(tmp_path.iterdir())
    told = CliRunner().invoke(command, [*flags, "--show", "2"])
    assert told.exit_code == 0, told.output
    assert sorted(tmp_path.iterdir()) == there
    assert "user:hi</s>assistant:[[fox</s>]]" in told.output
    assert "messages[1].content  'fox'" in told.output
    assert "line 2: the messages are a number, not a list of messages" in told.output
    assert "line 3" not in told.output
    missing = CliRunner().invoke(command, flags)
    assert missing.exit_code == 2
    assert "--output" in missing.output


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        ({"prompt": "see the ", "completion": "fox"}, {"prompt": "see the ", "completion": "fox"}),
        ({"instruction": "see", "input": "the", "output": "fox"}, {"instruction": "see\nthe", "output": "fox"}),
        ({"text": "the fox"}, {"text": "the fox"}),
    ],
)
def test_pairs_and_text_show_their_columns(tmp_path: Path, row: dict[str, str], shown: dict[str, str]) -> None:
    folder = saved(byte_level(), tmp_path / "tok")
    (tmp_path / "c.jsonl").write_text(json.dumps(row))
    flags = ["--input", str(tmp_path / "c.jsonl"), "--tokenizer", str(folder), "--show", "1", "--json"]
    told = json.loads(CliRunner().invoke(command, flags).output)
    begin, *own, end = [(each["text"], each["origin"]) for each in told["ranges"]]
    assert (begin, end) == (("<s>", "tokenizer"), ("</s>", "tokenizer"))
    assert {origin: text for text, origin in own} == shown
    num_trained = 3 if "text" in row else 2  # a response and its end
    assert [each["is_trained"] for each in told["ranges"]][-num_trained:] == [True] * num_trained
    assert sum(each["is_trained"] for each in told["ranges"]) == num_trained


def test_a_prepared_sequence_is_shown_with_its_mask_and_row(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, [*_flags(tmp_path), "--on-bad-row", "skip", "--output", str(tmp_path / "x")])
    assert done.exit_code == 0, done.output
    prepare(tmp_path / "x.idx", max_seq_len=64, output=tmp_path / "set", progress=False)
    flags = [str(tmp_path / "set"), "--id", "1", "--tokens", str(tmp_path / "x.idx")]
    told = CliRunner().invoke(show, flags)
    assert told.exit_code == 0, told.output
    assert f"sequence 1, from {tmp_path}/c.jsonl, line 3: " in told.output  # line 2 is bad
    assert "user:hi</s>assistant:[[fox</s>]]" in told.output
    assert "messages[1].content  'fox'" in told.output
    lines = (tmp_path / "c.jsonl").read_text()
    (tmp_path / "c.jsonl").write_text(lines.replace("fox", "dog"))
    told = CliRunner().invoke(show, flags).output
    assert "user:hi</s>assistant:[[fox</s>]]" in told
    assert "the origin is not known: " in told
    assert "c.jsonl, line 3 gives other tokens now" in told
    (tmp_path / "c.jsonl").unlink()
    told = CliRunner().invoke(show, flags).output
    assert "user:hi</s>assistant:[[fox</s>]]" in told
    assert "the origin is not known: " in told


def test_a_sequence_of_a_flat_file_is_shown_with_the_mask_beside_it(tmp_path: Path) -> None:
    flags = _flags(tmp_path)
    done = CliRunner().invoke(command, [*flags, "--on-bad-row", "skip", "--output", str(tmp_path / "x")])
    assert done.exit_code == 0, done.output
    for of_pair, of_flat in (("x", "y.bin"), ("x.loss_mask", "y.loss_mask.bin")):
        pair = MegatronTokens(tmp_path / of_pair)
        write_flat_tokens(tmp_path / of_flat, [pair.read(number) for number in range(len(pair))], np.uint16)
    prepare(tmp_path / "y.bin", max_seq_len=64, output=tmp_path / "set", progress=False)
    asked = [str(tmp_path / "set"), "--id", "1", "--tokens", str(tmp_path / "y.bin")]
    told = CliRunner().invoke(show, [*asked, "--tokenizer", str(tmp_path / "tok" / "tokenizer.json")])
    assert told.exit_code == 0, told.output
    assert "user:hi</s>assistant:[[fox</s>]]" in told.output


def test_both_answers_of_a_preference_have_their_row(tmp_path: Path) -> None:
    folder = saved(byte_level(), tmp_path / "tok", chat_template=_TEMPLATE)
    rows = [{"prompt": "see", "chosen": " the fox", "rejected": f" the {name}"} for name in ("dog", "fox", "user")]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--input", str(tmp_path / "c.jsonl"), "--tokenizer", str(folder), "--output", str(tmp_path / "x")]
    done = CliRunner().invoke(command, [*flags, "--no-targets", "drop"])
    assert done.exit_code == 0, done.output
    found = [trace_sequence(tmp_path / "x.idx", number) for number in range(5)]
    assert found[4] is None
    assert [each.origin[-6:] for each in found if each] == ["line 1", "line 1", "line 3", "line 3"]
    own = [each.explained.stretches[-2] for each in found if each]
    assert [(stretch.field, stretch.text) for stretch in own[2:]] == [("chosen", " the fox"), ("rejected", " the user")]
    tokens = MegatronTokens(tmp_path / "x")
    assert [each.explained.input_ids.tolist() for each in found if each] == [
        tokens.read(at).tolist() for at in range(4)
    ]


def test_a_notebook_shows_what_is_trained_in_colour() -> None:
    stretches = (
        MarkedRange(text="<a>", num_tokens=1, is_trained=False),
        MarkedRange(text="b & c", num_tokens=2, is_trained=True, origin="response"),
    )
    page = MarkedSequence(title="row", ranges=stretches, notes=("not in the text: tools",))._repr_html_()
    assert 'title="response" style=' in page
    assert "b &amp; c" in page
    assert "&lt;a&gt;" in page
    assert "not in the text: tools" in page


def test_rows_that_cannot_be_read_are_shown_with_their_fault_once(tmp_path: Path) -> None:
    folder = saved(byte_level(), tmp_path / "tok", chat_template=_TEMPLATE)
    path = tmp_path / "c.jsonl"
    for bad_line, columns in (("no JSON", ["--messages-column", "messages"]), ('{"text": 7}', [])):
        path.write_text(f"{bad_line}\n" * 5)
        told = CliRunner().invoke(command, ["--input", str(path), "--tokenizer", str(folder), "--show", "9", *columns])
        assert told.exit_code == 0, told.output
        assert [told.output.count(f"line {number}") for number in range(1, 6)] == [1] * 5, told.output
