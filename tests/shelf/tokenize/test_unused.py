"""What of a row is not in its tokens is counted by field, kept beside the output, and refused if that is asked for."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tests.flat_words import prepare
from tokenizers import Tokenizer, models, pre_tokenizers

from packhorse.cli import main
from packhorse.formats import MegatronTokens
from packhorse.formats.left_out import left_out_of

TEMPLATE = (
    "{% for m in messages %}{% if m.role in ('user', 'assistant', 'system') %}{{ m.role + ' ' + (m.content or '') }}"
    "{% for c in m.tool_calls or [] %}{{ ' ' + c.function.name + ' ' + (c.function.arguments | tojson) }}{% endfor %}"
    "{{ ' <end> ' }}{% endif %}{% endfor %}"
)
USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
CALL = {"type": "function", "function": {"name": "f", "arguments": {"city": "a"}}}
CALLS = {"role": "assistant", "content": "", "tool_calls": [CALL]}


def row(*messages: Any, **columns: Any) -> dict[str, Any]:
    return {"messages": [USER, *(messages or (ANSWER,))], **columns}


LOST = {
    "tools": row(tools=[{"type": "function", "function": {"name": "weather", "description": "b"}}]),
    "column source": row(source="web"),
    "column label": row(label="good"),
    "messages.reasoning_content": row({**ANSWER, "reasoning_content": "because"}),
    "messages.thinking": row({**ANSWER, "thinking": "because"}),
    "messages.reasoning": row({**ANSWER, "reasoning": "because"}),
    "messages.name": row({**ANSWER, "name": "Anna"}),
    "messages.score": row({**ANSWER, "score": 5}),
    "messages.refusal": row({**ANSWER, "refusal": "no"}),
    "messages of role tool": row(CALLS, {"role": "tool", "content": "sun"}, ANSWER),
    "messages of role developer": row({"role": "developer", "content": "be brief"}, USER, ANSWER),
    "parts of type image": row({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}, ANSWER),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    words = {"?": 0, "user": 1, "assistant": 2, "<end>": 3, "a": 4, "b": 5, "f": 6, '{"city":': 7, '"a"}': 8}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<end>"])
    folder = tmp_path / "model"
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def tokenized(model: Path, source: Path, *more: str) -> tuple[int, str, Path]:
    """The exit status, what is printed, and the prefix of the output."""
    output = model.parent / "x"
    flags = ["tokenize", "--input", str(source), "--tokenizer", str(model), "--output", str(output), "--overwrite"]
    result = CliRunner().invoke(main, [*flags, *more])
    return result.exit_code, result.output, output


@pytest.mark.parametrize("field", [name for name in LOST if name != "parts of type image"])
def test_what_is_lost_is_named_counted_kept_and_refused(model: Path, tmp_path: Path, field: str) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(each) + "\n" for each in (row(), LOST[field], LOST[field])))
    status, printed, output = tokenized(model, source)
    assert status == 0, printed
    names = json.loads(output.with_suffix(".unused.json").read_text())["unused"]
    (name,) = names
    # Reasoning has the name that templates read.
    assert name == field or {name, field} <= {
        f"messages.{key}" for key in ("reasoning_content", "thinking", "reasoning")
    }
    assert (names[name]["rows"], names[name]["first"]) == (2, f"{source}, line 2")
    assert f"not used   {name}, of 2 rows" in printed
    status, printed, _ = tokenized(model, source, "--strict")
    assert status == 1
    assert f"line 2: {name} would not be in the tokens" in printed
    assert tokenized(model, source, "--strict", "--ignore", name)[0] == 0


def test_parts_that_no_template_writes_are_refused(model: Path, tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text(json.dumps(LOST["parts of type image"]))
    status, printed, _ = tokenized(model, source)
    assert (status, "part of type 'image'" in printed) == (1, True)


@pytest.mark.parametrize("arguments", [{"city": "a"}, '{"city": "a"}'])
def test_nulls_that_arrow_invents_and_arguments_as_text_are_not_trained(
    model: Path, tmp_path: Path, arguments: Any
) -> None:
    calls = {**CALLS, "tool_calls": [{**CALL, "function": {"name": "f", "arguments": arguments}}]}
    other = {"city": None, "ticker": "b"} if isinstance(arguments, dict) else '{"ticker": "b"}'
    others = {**CALLS, "tool_calls": [{**CALL, "function": {"name": "f", "arguments": other}}]}
    rows = [row(calls), row(others)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    status, printed, output = tokenized(model, tmp_path / "rows.parquet")
    assert status == 0, printed
    assert MegatronTokens(str(output)).read(0).tolist() == [1, 4, 3, 2, 6, 7, 8, 3]


def test_verify_and_inspect_tell_later_what_was_left_out(model: Path, tmp_path: Path) -> None:
    (model / "chat_template.jinja").write_text(TEMPLATE.replace(" <end> ", "\n"))
    rows = [row(source="web"), {"messages": 5}, {"messages": []}, row(source="web")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    status, printed, output = tokenized(model, tmp_path / "rows.jsonl", "--on-bad-row", "skip")
    assert status == 0, printed
    prepare(output.with_suffix(".idx"), max_seq_len=16, output=tmp_path / "set", progress=False)
    text = "column source of 2 rows; 2 rows (bad 1, empty 1); the end of 2 turns, which have none"
    counts = {"not used: column source": 2, "skipped: bad": 1, "skipped: empty": 1, "turns without an end": 2}
    for name in ("inspect", "verify"):
        told = CliRunner().invoke(main, [name, str(tmp_path / "set")])
        assert f"not in the tokens, as tokenize left it out: {text}" in " ".join(told.output.split())
    facts = json.loads(CliRunner().invoke(main, ["verify", str(tmp_path / "set"), "--json"]).output)
    assert facts["left_out"] == counts
    told = CliRunner().invoke(main, ["verify", str(tmp_path / "set"), "--tokens", str(output.with_suffix(".idx"))])
    assert "not used   column source, of 2 rows (2 values)" in told.output
    assert "left out   2 rows (bad 1, empty 1); the end of 2 turns" in told.output


def test_turns_without_an_end_are_counted_with_one_of_them(model: Path, tmp_path: Path) -> None:
    (model / "chat_template.jinja").write_text(TEMPLATE.replace(" <end> ", "\n"))
    (tmp_path / "rows.jsonl").write_text(json.dumps(row(ANSWER, USER, ANSWER)))
    status, printed, output = tokenized(model, tmp_path / "rows.jsonl")
    assert status == 0, printed
    assert "2 trained turns have no token that ends them, e.g. " in printed
    assert json.loads(output.with_suffix(".unused.json").read_text())["open_turns"] == 2
    status, printed, output = tokenized(model, tmp_path / "rows.jsonl", "--eos", "<end>")
    assert "1 trained turns have no token" in printed
    assert MegatronTokens(str(output)).read(0).tolist()[-1] == 3


def test_a_damaged_file_of_what_was_left_out_is_named(tmp_path: Path) -> None:
    for content in ('{"unused": [], "open_turns": 0}', '{"unused": {}', "[]"):
        (tmp_path / "x.unused.json").write_text(content)
        with pytest.raises(ValueError, match=r"x\.unused\.json or x\.skipped\.jsonl is damaged: .*; tokenize again"):
            left_out_of(tmp_path / "x.bin")
