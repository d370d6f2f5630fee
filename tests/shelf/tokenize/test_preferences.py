"""Preferences, and prompts and responses that are messages: every form that TRL knows, against its parts encoded."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tests.flat_words import prepare
from tests.shelf.tokenize.test_fine_tuning import folder as folder
from tests.shelf.tokenize.test_fine_tuning import lines, written

from packhorse.sft import NoTargetsError, encode_chat, encode_prompt_response
from packhorse.sft.pairs import common_messages
from packhorse.tokenize import PairColumns, PreferenceColumns, tokenize_fine_tuning
from packhorse.tokenize.commands.tokenize import command

PROMPT = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b b b"},
    {"role": "user", "content": "a a"},
]
CHOSEN, REJECTED = [{"role": "assistant", "content": "b"}], [{"role": "assistant", "content": "a b"}]


def chat(answer: list[dict[str, str]], folder: Path) -> tuple[list[int], list[int]]:
    """Its tokens, with a mask on the last turn alone."""
    encoded = encode_chat([*PROMPT, *answer], folder, train_turns="last")
    return encoded.input_ids.tolist(), encoded.loss_mask.astype(int).tolist()


def pair(prompt: str, answer: str, folder: Path) -> tuple[list[int], list[int]]:
    encoded = encode_prompt_response(prompt, answer, folder)
    return encoded.input_ids.tolist(), encoded.loss_mask.astype(int).tolist()


FORMS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "text": ("prompt", {"prompt": "a a", "chosen": " b", "rejected": " a b"}),
    "text, implicit": (None, {"chosen": "a a b", "rejected": "a a a b"}),
    "messages": ("prompt", {"prompt": PROMPT, "chosen": CHOSEN, "rejected": REJECTED}),
    "messages, implicit": (None, {"chosen": PROMPT + CHOSEN, "rejected": PROMPT + REJECTED}),
}


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("form", FORMS)
def test_a_row_becomes_two_sequences_with_the_prompt_in_both(
    folder: Path, tmp_path: Path, form: str, kind: str
) -> None:
    prompt, row = FORMS[form]
    path = tmp_path / f"p.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist([row, row]), path)
    else:
        lines(path, [row, row])
    summary = tokenize_fine_tuning(path, tmp_path / "x", PreferenceColumns(prompt=prompt), tokenizer=folder)
    expected = [chat(CHOSEN, folder), chat(REJECTED, folder)]
    if form.startswith("text"):
        expected = [pair("a a", " b", folder), pair("a a", " a b", folder)]
    assert written(tmp_path / "x") == 2 * expected
    assert summary.sequences == 4


def test_prompts_and_responses_that_are_messages_train_on_the_response_alone(folder: Path, tmp_path: Path) -> None:
    path = lines(tmp_path / "p.jsonl", [{"q": PROMPT, "r": CHOSEN}, {"q": "a", "r": "b"}, {"q": PROMPT, "r": REJECTED}])
    tokenize_fine_tuning(path, tmp_path / "x", PairColumns(prompt="q", response="r"), tokenizer=folder)
    assert written(tmp_path / "x") == [chat(CHOSEN, folder), pair("a", "b", folder), chat(REJECTED, folder)]


def test_what_is_written_is_prepared_in_pairs(folder: Path, tmp_path: Path) -> None:
    path = lines(tmp_path / "p.jsonl", 5 * [FORMS["messages"][1]])
    flags = ["--chosen-column", "chosen", "--rejected-column", "rejected", "--prompt-column", "prompt"]
    where = ["--input", str(path), "--output", str(tmp_path / "x"), "--tokenizer", str(folder)]
    result = CliRunner().invoke(command, [*where, *flags], catch_exceptions=False)
    assert result.exit_code == 0
    assert "--group-size 2" in result.output
    manifest = prepare(tmp_path / "x.idx", group_size=2, max_seq_len=64, output=tmp_path / "d", progress=False)
    assert manifest.groups is not None
    assert manifest.groups.num_groups == 5


def test_a_row_is_dropped_with_both_its_sequences(folder: Path, tmp_path: Path) -> None:
    rows = [
        FORMS["messages"][1],
        {"prompt": PROMPT, "chosen": CHOSEN, "rejected": CHOSEN},
        {"prompt": PROMPT, "chosen": CHOSEN, "rejected": [{"role": "user", "content": "a"}]},
        {"prompt": None, "chosen": CHOSEN, "rejected": REJECTED},
        FORMS["messages"][1],
    ]
    path = lines(tmp_path / "p.jsonl", rows)
    columns = PreferenceColumns(prompt="prompt")
    with pytest.raises(NoTargetsError, match=r"line 2: .*the same answer.*no_targets='drop'"):
        tokenize_fine_tuning(path, tmp_path / "x", columns, tokenizer=folder)
    summary = tokenize_fine_tuning(path, tmp_path / "x", columns, tokenizer=folder, no_targets="drop")
    assert written(tmp_path / "x") == 2 * [chat(CHOSEN, folder), chat(REJECTED, folder)]
    assert (summary.sequences, summary.dropped_no_targets, summary.skipped_empty) == (4, 4, 1)
    assert [name.rpartition(", ")[2] for name in summary.dropped_named] == ["line 2", "line 3"]


@pytest.mark.parametrize(
    ("row", "columns", "message"),
    [
        (
            {"prompt": "a", "chosen": PROMPT + CHOSEN, "rejected": CHOSEN},
            {"prompt": "prompt"},
            "name no column of prompts",
        ),
        ({"prompt": PROMPT, "chosen": PROMPT + CHOSEN, "rejected": CHOSEN}, {"prompt": "prompt"}, "holds its prompt"),
        ({"chosen": CHOSEN, "rejected": REJECTED}, {}, "name the prompt's column with prompt_column"),
        ({"chosen": "x", "rejected": "y"}, {}, "name the prompt's column with prompt_column"),
        ({"chosen": "x y", "rejected": "x"}, {}, "name the prompt's column with prompt_column"),
        ({"chosen": "x", "rejected": CHOSEN}, {}, "both must be text, or lists"),
        (
            {"prompt": PROMPT[:2], "chosen": CHOSEN, "rejected": REJECTED},
            {"prompt": "prompt"},
            "ends with a turn of the",
        ),
        (
            {"prompt": PROMPT, "chosen": CHOSEN, "rejected": REJECTED},
            {"prompt": "prompt", "eos": False},
            "leave out eos",
        ),
        ({"prompt": "a", "chosen": "b", "rejected": "a"}, {"prompt": "prompt", "tools": "prompt"}, "tools_column"),
        ({"prompt": [5], "chosen": CHOSEN, "rejected": REJECTED}, {"prompt": "prompt"}, "lists of messages"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_row(
    folder: Path, tmp_path: Path, row: dict[str, Any], columns: dict[str, Any], message: str
) -> None:
    path = lines(tmp_path / "p.jsonl", [row])
    with pytest.raises(ValueError, match=f"p.jsonl, line 1: .*{message}"):
        tokenize_fine_tuning(path, tmp_path / "x", PreferenceColumns(**columns), tokenizer=folder)
    assert not list(tmp_path.glob("x*"))


def test_a_prompt_of_sharegpt_is_found(folder: Path) -> None:
    conversation = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    other = [conversation[0], {"from": "gpt", "value": "c"}]
    prompt, chosen, rejected = common_messages(conversation, other)
    assert json.dumps(prompt) == '[{"role": "user", "content": "a"}]'
    assert [chosen[0]["content"], rejected[0]["content"]] == ["b", "c"]
