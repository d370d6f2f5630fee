"""Which flags of `packhorse tokenize` go together, and the options of `packhorse.tokenize` that they make.

Owns telling text from chats, pairs and preferences by their columns, and refusing flags of the other forms. Their
values are in `_flags`, and the flags themselves in `commands/tokenize`.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
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
from packhorse.tokenize.columns import AnyColumns
from packhorse.tokenize.commands._flags import FORM_COLUMNS, TokenizeFlags

Form = type[ChatColumns | PairColumns | PreferenceColumns]
"""The class of the columns of chats, pairs or preferences."""


def with_standard_columns(inputs: Sequence[str], train_tokenizer: bool, flags: TokenizeFlags) -> TokenizeFlags:
    """Returns the flags. If none says what the rows hold, the standard columns of the input are filled in."""
    says_text = train_tokenizer or flags.are_for_text or flags.bos is not None  # rows of the forms take none of these
    if says_text or flags.form_columns:
        return flags
    try:
        columns = columns_of(inputs)
    except ValueError as error:
        raise click.UsageError(in_flags(message_of(error), click.get_current_context().command.params)) from None
    # {"prompt_column": "instruction", "response_column": "output", and None for the columns that the form lacks}
    standard: dict[str, Any] = {f"{kind}_column": getattr(columns, kind, None) for kind in FORM_COLUMNS}
    return replace(flags, **standard)


def form_of(flags: TokenizeFlags) -> Form | None:
    """Returns the form of rows that the column flags make; None for text."""
    kinds = set(flags.form_columns)
    if kinds - {"prompt"} == {"chosen", "rejected"}:  # preferences have a prompt or not
        return PreferenceColumns
    if kinds == {"prompt", "response"}:
        return PairColumns
    if kinds == {"messages"}:
        return ChatColumns
    if kinds:
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


def refuse_with_token_files(inputs: Sequence[str], values: Mapping[str, object]) -> None:
    """Refuses flags of text and chats if the input is token files.

    Args:
        inputs: the paths or patterns of the input; at least one is a token file.
        values: the value of each flag that has no effect on token files, by its name in Python, such as "no_eos". The
            message names the flags in this order.
    """
    defaults = {"undecodable": "skip", "on_bad_row": "error"}  # of the other flags every default is false
    flags = [_flag(name) for name, value in values.items() if value and defaults.get(name) != value]
    if flags:
        token_file = next(filter(is_token_file, inputs))
        raise click.UsageError(
            f"{token_file} holds tokens already: token files are joined into one pair as they are, so leave out "
            f"{', '.join(flags)}."
        )


def refuse_with_text(flags: TokenizeFlags) -> None:
    """Refuses flags of chats, pairs and preferences."""
    for name in ("turn_end", "strict", "ignore", "cutoff"):
        if getattr(flags, name):
            raise click.UsageError(f"{_flag(name)} goes with --messages-column, --prompt-column or --chosen-column.")
    has_chat_flag = any(value is not None for value in (flags.tools_column, flags.chat_template, flags.train_turns))
    if has_chat_flag or flags.template_options:
        raise click.UsageError(
            "--tools-column, --chat-template, --template-option and --train-turns go with --messages-column."
        )
    if flags.cutoff_len is not None or flags.no_targets is not None:
        raise click.UsageError(
            "--cutoff-len and --no-targets go with --messages-column, --prompt-column or --chosen-column."
        )


def special_tokens(flags: TokenizeFlags) -> SpecialTokens:
    """Returns the tokens around a document of text."""
    return SpecialTokens(
        bos=flags.bos,
        eos=flags.eos,
        append_eos=not flags.no_eos,
        special_in_text=flags.special_in_text or "text",
    )


def document_options(flags: TokenizeFlags) -> DocumentOptions:
    """Returns how inputs of text are divided into documents."""
    return DocumentOptions(
        split=flags.documents,
        text_column=flags.text_column,
        id_column=flags.id_column,
        glob=flags.glob,
        undecodable=flags.undecodable,
        on_bad_row=flags.on_bad_row,
    )


def columns_and_tokenizer(form: Form, flags: TokenizeFlags) -> tuple[AnyColumns, Path]:
    """Returns the columns of the rows with their options, and the tokenizer's path.

    Refuses flags of other forms and of text.
    """
    columns = _columns(form, flags)
    return columns, _tokenizer_of_rows(flags)


def _columns(form: Form, flags: TokenizeFlags) -> AnyColumns:
    """Returns the columns of the rows with the options that the flags give; refuses flags of other forms."""
    is_chat = form is ChatColumns
    if is_chat and (flags.bos is not None or flags.no_eos):
        raise click.UsageError(
            "--bos and --no-eos have no effect with --messages-column: the chat template begins and ends turns."
        )
    if not is_chat and flags.train_turns is not None:
        raise click.UsageError("--train-turns goes with --messages-column.")
    options: dict[str, Any] = {
        **flags.form_columns,
        "tools": flags.tools_column,
        "chat_template": flags.chat_template,
        "template_options": dict(map(_template_option, flags.template_options)),
        "turn_end": flags.turn_end or "template",
        "cutoff": flags.cutoff or "oldest",
        "strict": flags.strict,
        "special_in_text": flags.special_in_text or "keep",
        "ignore": flags.ignore,
    }
    if is_chat:
        options |= {"train_turns": flags.train_turns or "all", "eos": flags.eos}
    else:
        options["eos"] = not flags.no_eos if flags.eos is None else flags.eos  # a token, or whether there is one
    return form(**options)


def _tokenizer_of_rows(flags: TokenizeFlags) -> Path:
    """Returns the path of the tokenizer of chats and pairs; refuses flags of plain text."""
    if flags.special_in_text == "text":
        raise click.UsageError(
            "--special-in-text text is for plain text: in chats and pairs a special token's text becomes the token, as "
            "in transformers. --special-in-text error refuses such rows."
        )
    if flags.bos is not None:
        raise click.UsageError("--bos is for plain text; for prompts the tokenizer adds its own beginning.")
    if flags.are_for_text:
        raise click.UsageError(
            "--text-column, --id-column, --documents and --glob are for plain text, not for chats and pairs."
        )
    if flags.tokenizer is None:
        raise click.UsageError("Chats and pairs are tokenized with the model's own --tokenizer, not --train-tokenizer.")
    return flags.tokenizer


def _flag(name: str) -> str:
    """Returns the flag of a parameter of the command."""
    if name == "template_options":  # given once for each option
        return "--template-option"
    return f"--{name.replace('_', '-')}"


def _template_option(text: str) -> tuple[str, Any]:
    """Returns (name, value) of NAME=VALUE; a VALUE that is not JSON is text."""
    name, equals_sign, value = text.partition("=")
    if not equals_sign or not name.isidentifier():
        raise click.UsageError(f"--template-option {text} is not NAME=VALUE, such as enable_thinking=false.")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value
