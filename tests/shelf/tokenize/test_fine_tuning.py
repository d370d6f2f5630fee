"""Rows of chats and pairs to token files with a loss mask: contents, what is left out, refusals, the command."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tests.flat_words import tokenize, tokenize_fine_tuning
from tokenizers import Tokenizer, models, pre_tokenizers

from packhorse.formats import MegatronTokens
from packhorse.prepare import prepare
from packhorse.sft import encode_chat, encode_prompt_response
from packhorse.tokenize import ChatColumns, PairColumns
from packhorse.tokenize.commands.tokenize import command

TEMPLATE = (
    "{% for m in messages %}{{ m.role + ' ' + m.content + ' <end> ' }}{% endfor %}"
    "{% if tools %}{{ tools | length }}{% endif %}{% if add_generation_prompt %}assistant {% endif %}"
)
CHATS = [
    [
        {"role": "user", "content": "a " * number},
        {"role": "assistant", "content": "b " * (number % 7 + 1)},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b b", "weight": 1},
    ]
    for number in range(1, 300)
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A word tokenizer with a chat template."""
    words = ["[UNK]", "user", "assistant", "a", "b", "<end>", "1", "2"]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<end>"])
    path = tmp_path / "tokenizer"
    path.mkdir()
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


def lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def written(prefix: Path) -> list[tuple[list[int], list[int]]]:
    tokens, masks = MegatronTokens(prefix), MegatronTokens(f"{prefix}.loss_mask")
    assert tokens.lengths.tolist() == masks.lengths.tolist()
    return [(tokens.read(i).tolist(), masks.read(i).tolist()) for i in range(len(tokens))]


@pytest.mark.parametrize("form", ["jsonl", "parquet", "text"])
def test_chats_are_written_as_they_are_encoded(folder: Path, tmp_path: Path, form: str) -> None:
    tools = [{"name": "f"}]
    rows = [{"messages": chat, "tools": tools if number % 2 else None} for number, chat in enumerate(CHATS)]
    if form == "text":
        rows = [{name: json.dumps(value) if value else None for name, value in row.items()} for row in rows]
    if form == "parquet":
        path = tmp_path / "chats.parquet"
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path = lines(tmp_path / "chats.jsonl", rows)
    columns = ChatColumns(tools="tools")
    summary = tokenize_fine_tuning(path, tmp_path / "x", columns, tokenizer=folder, cutoff_len=100)
    expected = [
        encode_chat(chat, folder, tools=tools if number % 2 else None, max_tokens=100)
        for number, chat in enumerate(CHATS)
    ]
    assert written(tmp_path / "x") == [
        (encoded.input_ids.tolist(), encoded.loss_mask.astype(int).tolist()) for encoded in expected
    ]
    assert summary.sequences == len(CHATS)
    assert summary.tokens == sum(map(len, expected))
    assert summary.trained_tokens == sum(encoded.num_trained_tokens for encoded in expected)
    assert summary.longest == max(map(len, expected)) == 100
    assert summary.cut_sequences == sum(encoded.num_cut_tokens > 0 for encoded in expected) > 0
    assert summary.cut_tokens == sum(encoded.num_cut_tokens for encoded in expected)
    assert (summary.dropped_no_targets, summary.skipped_empty, summary.skipped_undecodable) == (0, 0, 0)
    assert summary.tokenizer_path.read_bytes() == (folder / "tokenizer.json").read_bytes()


def test_the_last_turn_and_a_template_of_ones_own(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.jinja"
    own.write_text(TEMPLATE.replace("' <end> '", "' <end> a '"))
    columns = ChatColumns(chat_template=own, train_turns="last")
    tokenize_fine_tuning(
        lines(tmp_path / "c.jsonl", [{"messages": CHATS[0]}]), tmp_path / "x", columns, tokenizer=folder
    )
    assert written(tmp_path / "x") == [([1, 3, 5, 3, 2, 4, 4, 5, 3, 1, 3, 5, 3, 2, 4, 4, 5, 3], [0] * 14 + [1] * 4)]


@pytest.mark.parametrize("eos", [True, False, "a"])
def test_pairs_are_written_as_they_are_encoded(folder: Path, tmp_path: Path, eos: bool | str) -> None:
    pairs = [("a " * number, "b " * (number % 9)) for number in range(1, 40)]
    path = lines(tmp_path / "p.jsonl", [{"q": q, "r": r} for q, r in pairs] + [{"q": None, "r": "b"}])
    columns = PairColumns(prompt="q", response="r", eos=eos)
    summary = tokenize_fine_tuning(path, tmp_path / "x", columns, tokenizer=folder, cutoff_len=20, no_targets="drop")
    expected = [encode_prompt_response(q, r, folder, eos=eos, max_tokens=20) for q, r in pairs if r or eos]
    assert written(tmp_path / "x") == [
        (encoded.input_ids.tolist(), encoded.loss_mask.astype(int).tolist()) for encoded in expected
    ]
    assert summary.skipped_empty == 1
    assert summary.dropped_no_targets == len(pairs) - len(expected)
    assert len(summary.dropped_named) == min(5, summary.dropped_no_targets)


def test_pairs_end_as_the_settings_beside_a_trained_tokenizer_say(tmp_path: Path) -> None:
    path = lines(tmp_path / "p.jsonl", [{"q": "some words", "r": "more words"}])
    tokenize(path, tmp_path / "x", text_column="q", vocab_size=300, eos="<end>")
    columns = PairColumns(prompt="q", response="r")
    for source, name in (("x", "y"), ("y", "z")):
        trained = tmp_path / f"{source}.tokenizer.json"
        tokenize_fine_tuning(path, tmp_path / name, columns, tokenizer=trained)
        ((ids, mask),) = written(tmp_path / name)
        assert (ids[-1], mask[-1]) == (Tokenizer.from_file(str(trained)).token_to_id("<end>"), 1)
    (tmp_path / "x.tokenizer_config.json").unlink()
    with pytest.raises(
        ValueError, match=r"x\.tokenizer\.json ends a sequence: name it with eos='TOKEN', or choose none with eos=False"
    ):
        tokenize_fine_tuning(path, tmp_path / "w", columns, tokenizer=tmp_path / "x.tokenizer.json")
    with pytest.raises(ValueError, match="is a folder"):
        tokenize_fine_tuning(path, f"{tmp_path}/", columns, tokenizer=tmp_path / "y.tokenizer.json")


def test_what_is_written_can_be_prepared(folder: Path, tmp_path: Path) -> None:
    path = lines(tmp_path / "c.jsonl", [{"messages": chat} for chat in CHATS[:50]])
    tokenize_fine_tuning(path, tmp_path / "sft", ChatColumns(), tokenizer=folder)
    manifest = prepare(tmp_path / "sft.idx", output=tmp_path / "o", max_seq_len=512)
    assert manifest.num_sequences == 50
    with pytest.raises(ValueError, match=r"sft\.loss_mask\.idx is a loss mask, not tokens: prepare .*sft\.idx"):
        prepare(tmp_path / "sft.loss_mask.idx", output=tmp_path / "m", max_seq_len=512)


def test_rows_without_targets_are_an_error_or_counted_and_named(folder: Path, tmp_path: Path) -> None:
    muted = [CHATS[0][0], {**CHATS[0][1], "train": False}]
    path = lines(tmp_path / "c.jsonl", [{"messages": CHATS[0]}, {"messages": muted}, {"messages": []}])
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ValueError, match=r"c\.jsonl, line 2: 0 of .* leave it out \(no_targets='drop'\)"):
        tokenize_fine_tuning(path, tmp_path / "x", ChatColumns(), tokenizer=folder)
    assert sorted(tmp_path.iterdir()) == before
    summary = tokenize_fine_tuning(path, tmp_path / "x", ChatColumns(), tokenizer=folder, no_targets="drop")
    assert (summary.sequences, summary.dropped_no_targets, summary.skipped_empty) == (1, 1, 1)
    assert summary.dropped_named == (f"{path}, line 2",)


@pytest.mark.parametrize("existing", ["x.bin", "x.loss_mask.idx", "x.tokenizer.json", "x.tokenizer_config.json"])
def test_an_existing_output_is_refused(folder: Path, tmp_path: Path, existing: str) -> None:
    (tmp_path / existing).write_bytes(b"old")
    path = lines(tmp_path / "c.jsonl", [{"messages": CHATS[0]}])
    with pytest.raises(FileExistsError, match=existing):
        tokenize_fine_tuning(path, tmp_path / "x", ChatColumns(), tokenizer=folder)
    tokenize_fine_tuning(path, tmp_path / "x", ChatColumns(), tokenizer=folder, overwrite=True)
    assert len(written(tmp_path / "x")) == 1


def test_mistakes_are_named_with_their_row_and_leave_nothing(folder: Path, tmp_path: Path) -> None:
    good = {"messages": CHATS[0]}

    def refused(rows: list[Any], match: str, columns: ChatColumns | PairColumns | None = None, **options: Any) -> None:
        path = lines(tmp_path / "c.jsonl", rows)
        before = sorted(tmp_path.iterdir())
        with pytest.raises(ValueError, match=match):
            tokenize_fine_tuning(path, tmp_path / "x", columns or ChatColumns(), tokenizer=folder, **options)
        assert sorted(tmp_path.iterdir()) == before

    refused([good, {"chat": []}], r"line 2 has no key 'messages'; it has chat")
    refused([good, {"messages": [{"from": "human"}]}], r"line 2: message 0 needs a role")
    refused([good, {"messages": "[not json"}], r"line 2: the messages are text that is not JSON")
    refused([good, {"messages": [{"role": "user"}]}], r"line 2: message 0, of the user, has no content")
    refused([{"messages": None}], "no sequence in the input: 1 empty")
    refused(
        [{"q": 1, "r": "b"}],
        r"line 1: the prompt is a number and the response is text",
        PairColumns(prompt="q", response="r"),
    )
    refused([good], "no_targets is 'skip'", no_targets="skip")
    refused([good], "max_tokens is 1", cutoff_len=1)
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(ValueError, match=r"a\.txt has no rows: they are in"):
        tokenize_fine_tuning(tmp_path / "a.txt", tmp_path / "x", ChatColumns(), tokenizer=folder)
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet has no column 'messages'"):
        tokenize_fine_tuning(tmp_path / "a.parquet", tmp_path / "x", ChatColumns(), tokenizer=folder)


def test_the_command_writes_the_same_and_prints_what_it_did(folder: Path, tmp_path: Path) -> None:
    muted = [CHATS[0][0]]
    path = lines(tmp_path / "c.jsonl", [{"messages": chat} for chat in [*CHATS, muted]])
    flags = ["--input", str(path), "--messages-column", "messages", "--tokenizer", str(folder)]
    flags += ["--output", str(tmp_path / "x"), "--cutoff-len", "50", "--no-targets", "drop"]
    result = CliRunner().invoke(command, flags, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    summary = tokenize_fine_tuning(
        path, tmp_path / "y", ChatColumns(), tokenizer=folder, cutoff_len=50, no_targets="drop"
    )
    for suffix in (".bin", ".idx", ".loss_mask.bin", ".loss_mask.idx", ".tokenizer.json"):
        assert (tmp_path / f"x{suffix}").read_bytes() == (tmp_path / f"y{suffix}").read_bytes()
    for text in (
        f"{summary.trained_tokens:,} (",
        f"{summary.cut_sequences:,} sequences, by {summary.cut_tokens:,} tokens",
        str(tmp_path / "x.loss_mask.idx"),
        f"no targets, e.g. {path}, line 300",
    ):
        assert text in result.output


def test_the_command_takes_pairs(folder: Path, tmp_path: Path) -> None:
    path = lines(tmp_path / "p.jsonl", [{"q": "a", "r": "b"}])
    flags = ["--input", str(path), "--prompt-column", "q", "--response-column", "r", "--tokenizer", str(folder)]
    for name, more, tokens in (("x", [], [3, 4, 5]), ("y", ["--no-eos"], [3, 4]), ("z", ["--eos", "1"], [3, 4, 6])):
        result = CliRunner().invoke(command, [*flags, "--output", str(tmp_path / name), *more], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        assert written(tmp_path / name) == [(tokens, [0] + [1] * (len(tokens) - 1))]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tokenizer", "t", "--prompt-column", "q"], "--prompt-column and --response-column"),
        (
            ["--tokenizer", "t", "--messages-column", "m", "--prompt-column", "q", "--response-column", "r"],
            "Give --messages-column; or --prompt-column",
        ),
        (
            ["--tokenizer", "t", "--messages-column", "m", "--no-eos"],
            "no effect with --messages-column: the chat template",
        ),
        (["--tokenizer", "t", "--chat-template", "c"], "go with --messages-column"),
        (["--tokenizer", "t", "--cutoff-len", "9"], "--cutoff-len and --no-targets go with"),
        (["--tokenizer", "t", "--chosen-column", "c"], "--chosen-column and --rejected-column, with or without"),
        (
            ["--tokenizer", "t", "--prompt-column", "q", "--response-column", "r", "--train-turns", "last"],
            "--train-turns",
        ),
        (["--train-tokenizer", "--messages-column", "m"], "the model's own --tokenizer"),
    ],
)
def test_the_command_refuses_flags_that_do_not_go_together(tmp_path: Path, flags: list[str], message: str) -> None:
    rows = lines(tmp_path / "i.jsonl", [{"text": "a"}])
    result = CliRunner().invoke(command, ["--input", str(rows), "--output", str(tmp_path / "o"), *flags])
    assert result.exit_code == 2
    assert message in result.output
