"""Which flags of `packhorse tokenize` go together, and the options of `packhorse.tokenize` that they make.

Owns telling text from chats, pairs and preferences by their columns, and refusing flags of the other forms. The flags
themselves are in `commands/tokenize`. `given` is flag → value; without the flag None, False or empty, or its default.
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import click

from packhorse.cli.shared.spelling import in_flags
from packhorse.parameters import message_of
from packhorse.tokenize import (
    ChatColumns,
    DocumentOptions,
    PairColumns,
    PreferenceColumns,
    SpecialTokens,
    columns_of,
    is_token_file,
)

Form = type[ChatColumns | PairColumns | PreferenceColumns]

_FORM_COLUMNS = ("messages", "prompt", "response", "chosen", "rejected")
"""The columns that make a form; each has a flag, such as --messages-column."""

_TEXT_FLAGS = ("text_column", "id_column", "documents", "glob")
"""Flags that only plain text has."""


def with_standard_columns(inputs: Sequence[str], train_tokenizer: bool, given: dict[str, Any]) -> dict[str, Any]:
    """Returns the flags. If none says what the rows hold, the standard columns of the input are filled in."""
    if train_tokenizer or any(given[name] is not None for name in (*_TEXT_FLAGS, "bos")):
        return given
    if any(given[f"{name}_column"] is not None for name in _FORM_COLUMNS):
        return given
    try:
        columns = columns_of(inputs)
    except ValueError as error:
        raise click.UsageError(in_flags(message_of(error), click.get_current_context().command.params)) from None
    return given | {f"{name}_column": getattr(columns, name, None) for name in _FORM_COLUMNS}


def form_of(given: Mapping[str, Any]) -> Form | None:
    """Returns the form of rows that the column flags make; None for text."""
    named = {name for name in _FORM_COLUMNS if given[f"{name}_column"] is not None}
    if named - {"prompt"} == {"chosen", "rejected"}:
        return PreferenceColumns
    if named == {"prompt", "response"}:
        return PairColumns
    if named == {"messages"}:
        return ChatColumns
    if named:
        raise click.UsageError(
            "Give --messages-column; or --prompt-column and --response-column; or --chosen-column and "
            "--rejected-column, with or without --prompt-column."
        )
    return None


def expanded_files(more: Sequence[str]) -> Sequence[str]:
    """Returns the arguments without a flag: a shell expands a pattern after --input to them if it is not quoted.

    Refuses an argument that is no file.
    """
    for path in more:
        if not os.path.exists(path):
            raise click.UsageError(
                f"Got unexpected extra argument {path!r}. Give --input before each file, or a pattern in quotes: "
                "--input '*.jsonl'."
            )
    return more


def refuse_with_token_files(inputs: Sequence[str], train_tokenizer: bool, given: Mapping[str, Any]) -> None:
    """Refuses flags of text and chats if the input is token files."""
    defaults = {"undecodable": "skip", "on_bad_row": "error"}
    flags = [_flag(name) for name, value in given.items() if value and defaults.get(name) != value]
    flags += ["--train-tokenizer"] if train_tokenizer else []
    if flags:
        token_file = next(filter(is_token_file, inputs))
        raise click.UsageError(
            f"{token_file} holds tokens already: token files are joined into one pair as they are, so leave out "
            f"{', '.join(flags)}."
        )


def text_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keywords of `tokenize`; refuses flags of chats and pairs."""
    for name in ("turn_end", "strict", "ignore", "cutoff"):
        if given[name]:
            raise click.UsageError(f"{_flag(name)} goes with --messages-column, --prompt-column or --chosen-column.")
    chat_flags = ("tools_column", "chat_template", "train_turns")
    if given["template_options"] or any(given[name] is not None for name in chat_flags):
        raise click.UsageError(
            "--tools-column, --chat-template, --template-option and --train-turns go with --messages-column."
        )
    if given["cutoff_len"] is not None or given["no_targets"] is not None:
        raise click.UsageError(
            "--cutoff-len and --no-targets go with --messages-column, --prompt-column or --chosen-column."
        )
    special = SpecialTokens(
        bos=given["bos"],
        eos=given["eos"],
        append_eos=not given["no_eos"],
        special_in_text=given["special_in_text"] or "text",
    )
    names = ("text_column", "id_column", "glob", "undecodable", "on_bad_row")
    documents = DocumentOptions(split=given["documents"], **{name: given[name] for name in names})
    return {
        "tokenizer": given["tokenizer"],
        "vocab_size": given["vocab_size"],
        "documents": documents,
        "special": special,
    }


def row_options(
    form: Form, given: Mapping[str, Any]
) -> tuple[ChatColumns | PairColumns | PreferenceColumns, dict[str, Any]]:
    """Returns (the form of the rows, keywords of `tokenize_fine_tuning`); refuses flags of other forms and of text."""
    return _columns(form, given), _keywords_of_rows(given)


def _columns(form: Form, given: Mapping[str, Any]) -> ChatColumns | PairColumns | PreferenceColumns:
    """Returns the form of the rows with the columns and options that the flags give; refuses flags of other forms."""
    is_chat = form is ChatColumns
    if is_chat and (given["bos"] is not None or given["no_eos"]):
        raise click.UsageError(
            "--bos and --no-eos have no effect with --messages-column: the chat template begins and ends turns."
        )
    if not is_chat and given["train_turns"] is not None:
        raise click.UsageError("--train-turns goes with --messages-column.")
    names = {name: column for name in _FORM_COLUMNS if (column := given[f"{name}_column"]) is not None}
    shared = {
        "tools": given["tools_column"],
        "chat_template": given["chat_template"],
        "template_options": dict(map(_template_option, given["template_options"])),
        "turn_end": given["turn_end"] or "template",
        "cutoff": given["cutoff"] or "oldest",
        "strict": given["strict"],
        "special_in_text": given["special_in_text"] or "keep",
        "ignore": given["ignore"],
    }
    eos = given["eos"]
    if is_chat:
        shared["train_turns"] = given["train_turns"] or "all"
    elif eos is None:
        eos = not given["no_eos"]
    return form(**names, **shared, eos=eos)


def _keywords_of_rows(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keywords of `tokenize_fine_tuning`; refuses flags of plain text."""
    if given["special_in_text"] == "text":
        raise click.UsageError(
            "--special-in-text text is for plain text: in chats and pairs a special token's text becomes the token, as "
            "in transformers. --special-in-text error refuses such rows."
        )
    if given["bos"] is not None:
        raise click.UsageError("--bos is for plain text; for prompts the tokenizer adds its own beginning.")
    if any(given[name] is not None for name in _TEXT_FLAGS):
        raise click.UsageError(
            "--text-column, --id-column, --documents and --glob are for plain text, not for chats and pairs."
        )
    if given["tokenizer"] is None:
        raise click.UsageError("Chats and pairs are tokenized with the model's own --tokenizer, not --train-tokenizer.")
    return {
        "tokenizer": given["tokenizer"],
        "cutoff_len": given["cutoff_len"],
        "no_targets": given["no_targets"] or "error",
    }


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _template_option(text: str) -> tuple[str, Any]:
    """Parses NAME=VALUE; a VALUE that is not JSON is text."""
    name, mark, value = text.partition("=")
    if not mark or not name.isidentifier():
        raise click.UsageError(f"--template-option {text} is not NAME=VALUE, such as enable_thinking=false.")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value
