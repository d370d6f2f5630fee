"""`packhorse tokenize`: text to Megatron token files; chats, pairs and preferences with a loss mask.

Owns the command's flags, and what it calls. Leaves which flags go together to `_flag_checks`, the printed summary to
`_summary`, and the work to `packhorse.tokenize`.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from packhorse.cli.shared.flags import flags_of
from packhorse.cli.shared.signals import stopped_by_signals
from packhorse.cli.shared.timeouts import store_timeout_option
from packhorse.pictures.commands.marked_output import marked_of, print_marked
from packhorse.sft import ExplainedSequence
from packhorse.tokenize import (
    DEFAULT_EOS,
    DEFAULT_VOCAB_SIZE,
    Execution,
    PreferenceColumns,
    is_token_file,
    join_token_files,
    preview_fine_tuning,
    preview_text,
    tokenize,
    tokenize_fine_tuning,
)
from packhorse.tokenize.commands._flag_checks import (
    Form,
    columns_and_tokenizer,
    document_options,
    expanded_files,
    form_of,
    refuse_with_text,
    refuse_with_token_files,
    special_tokens,
    with_standard_columns,
)
from packhorse.tokenize.commands._flags import TokenizeFlags
from packhorse.tokenize.commands._summary import (
    facts_of_fine_tuning,
    facts_of_joined,
    facts_of_text,
    print_summary,
    print_warnings,
)

_KEPT = "finished parts are kept for --resume"
"""What a signal's message says of the work done so far."""


@click.command("tokenize")
@click.option(
    "--input",
    "inputs",
    required=True,
    multiple=True,
    metavar="PATH",
    help="File of text, JSON, JSON lines (also .gz, .zst), Parquet or Arrow, a folder, a quoted pattern, or the URL "
    "of one (s3://…); may be given several times. In a folder it reads the files of rows, or all files as text if "
    "there are no rows.",
)
@click.option(
    "--output",
    metavar="PREFIX",
    help="Writes PREFIX.bin, .idx, .tokenizer.json and more. Needed unless --show is given.",
)
@click.option(
    "--show",
    "num_shown",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Print the first N rows or documents with what is trained in [[ ]] or in colour, and where each part comes "
    "from. Without --output nothing is written.",
)
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="A local tokenizer.json of the tokenizers library, or the folder that holds it.",
)
@click.option("--train-tokenizer", is_flag=True, help="Train a byte-level BPE on the input instead of --tokenizer.")
@click.option(
    "--vocab-size",
    type=int,
    metavar="N",
    help=f"Tokens of the trained tokenizer, at most.  [default: {DEFAULT_VOCAB_SIZE}]",
)
@click.option(
    "--text-column", metavar="NAME", help="Column, or key of a JSON row, that holds the text. [default: text]"
)
@click.option(
    "--id-column",
    metavar="NAME",
    help="Parquet column, or key of a JSON line, that names each document, such as its URL. Writes PREFIX.keys.arrow, "
    "where prepare finds these keys.",
)
@click.option(
    "--documents",
    type=click.Choice(["file", "line", "paragraph"]),
    help="What a document is in a text file, also in a folder's; a paragraph ends at a blank line. Reads .json, .csv "
    "and .tsv as text too. [default: file]",
)
@click.option(
    "--glob",
    metavar="PATTERN",
    help="Files to read in an input folder, e.g. '*.py' at every depth. [default: *]",
)
@click.option(
    "--undecodable",
    type=click.Choice(["skip", "error"]),
    default="skip",
    show_default=True,
    help="What happens to documents that are binary or not UTF-8.",
)
@click.option(
    "--on-bad-row",
    type=click.Choice(["error", "skip"]),
    default="error",
    show_default=True,
    help="What happens to a row that cannot be read or encoded. Whatever is left out is counted, and named in "
    "PREFIX.skipped.jsonl.",
)
@click.option(
    "--special-in-text",
    type=click.Choice(["text", "keep", "error"]),
    help="What becomes of special tokens that a text spells out: its characters, the token, or an error. They are "
    "counted.  [default: text; of chats and pairs keep]",
)
@click.option(
    "--bos", metavar="TOKEN", help="Token that begins every sequence, if the tokenizer does not add it itself."
)
@click.option(
    "--eos",
    metavar="TOKEN",
    help=f"Token that ends every sequence.  [default: {DEFAULT_EOS} with --train-tokenizer; with --tokenizer, its own]",
)
@click.option("--no-eos", is_flag=True, help="Append no end-of-sequence token.")
@click.option(
    "--messages-column",
    metavar="NAME",
    help="Column of chat messages or of ShareGPT's conversations, as a list or its JSON text. Also writes the loss "
    "mask PREFIX.loss_mask.bin and .idx: only the assistant's turns are trained on.",
)
@click.option("--tools-column", metavar="NAME", help="Column of the tools of each chat, as a list or its JSON text.")
@click.option(
    "--chat-template",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Jinja chat template.  [default: the one in the tokenizer's folder]",
)
@click.option(
    "--template-option",
    "template_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Variable for the chat template, e.g. enable_thinking=false. A value that is not JSON is text. May be given "
    "several times.",
)
@click.option(
    "--train-turns",
    type=click.Choice(["all", "last"]),
    help="Which of a chat's assistant turns are trained on.  [default: all]",
)
@click.option(
    "--prompt-column",
    metavar="NAME",
    help="Column of prompts, text or lists of messages. Needs --response-column, or --chosen-column if the answers "
    "do not begin with their prompt.",
)
@click.option(
    "--response-column",
    metavar="NAME",
    help="Column of responses. Also writes a loss mask: only responses are trained on.",
)
@click.option(
    "--chosen-column",
    metavar="NAME",
    help="Column of the better of two answers. Each row becomes two sequences with a loss mask, chosen and rejected, "
    "for prepare --group-size 2.",
)
@click.option("--rejected-column", metavar="NAME", help="Column of the worse answer; needs --chosen-column.")
@click.option(
    "--cutoff-len",
    type=click.IntRange(min=2),
    metavar="N",
    help="Cut longer chats and pairs to N tokens: the oldest exchanges go, then the beginning of the prompt. An answer "
    "is never cut; a sequence that still does not fit teaches nothing.",
)
@click.option(
    "--cutoff",
    type=click.Choice(["oldest", "drop"]),
    help="What --cutoff-len does to a longer row: take its oldest parts away, or leave the row out and count it. "
    "[default: oldest]",
)
@click.option(
    "--turn-end",
    type=click.Choice(["template", "next"]),
    help="What ends a turn of the assistant: the template's own mark in it, or, if it has none, the mark with which "
    "the next message begins.  [default: template]",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Refuse a row of which a column, or a field of a message or tool, is not in its tokens. Without it such "
    "fields are counted, and named in PREFIX.unused.json.",
)
@click.option(
    "--ignore",
    multiple=True,
    metavar="FIELD",
    help="Column, or field as the count names it (messages.name), that may be left out without a word. May be given "
    "several times.",
)
@click.option(
    "--no-targets",
    type=click.Choice(["error", "drop"]),
    help="What happens to a chat or pair without a token to train on; dropped ones are counted and listed. [default: "
    "error]",
)
@flags_of(
    Execution, "execution", choices={"engine": ["processes", "ray"]}, leave_out=("time_limit_seconds", "progress")
)
@store_timeout_option
@click.option("--overwrite", is_flag=True, help="Replace output files that are already there.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.argument("more", nargs=-1, metavar="")
def command(
    inputs: tuple[str, ...],
    more: tuple[str, ...],
    output: str | None,
    num_shown: int | None,
    train_tokenizer: bool,
    execution: Execution,
    overwrite: bool,
    as_json: bool,
    **values: Any,
) -> int:
    """Turn text into Megatron token files, one sequence for each document, chat or prompt/response pair.

    Sequences keep the order of the inputs, for any number of workers.
    """
    # Returns how many sequences a row becomes, 2 for preferences and else 1. `prepare --tokenizer`, which calls this
    # function, makes groups of this size. (click prints the docstring as help, so it cannot stand there.)
    if output is None and num_shown is None:
        raise click.UsageError("Missing option '--output'.")
    inputs = (*inputs, *expanded_files(more))
    if any(map(is_token_file, inputs)):
        refuse_with_token_files(inputs, {**values, "train_tokenizer": train_tokenizer, "show": num_shown})
        assert output is not None  # without it --show is given, which was refused
        joined = join_token_files(inputs, output, overwrite=overwrite)
        print_summary(joined, facts_of_joined, as_json=as_json, with_paths=_runs_by_itself())
        return 1
    flags = TokenizeFlags(**values)
    if train_tokenizer == (flags.tokenizer is not None):
        raise click.UsageError("Give either --tokenizer FILE or --train-tokenizer.")
    if flags.vocab_size is not None and not train_tokenizer:
        raise click.UsageError("--vocab-size goes with --train-tokenizer.")
    if flags.no_eos and flags.eos is not None:
        raise click.UsageError("Give either --eos TOKEN or --no-eos.")
    flags = with_standard_columns(inputs, train_tokenizer, flags)
    form = form_of(flags)
    if num_shown is not None:
        _show(_preview(inputs, form, flags, num_shown), as_json=as_json)
    if output is None:
        return 1
    if form is None:
        _tokenize_text(inputs, output, flags, execution, overwrite=overwrite, as_json=as_json)
        return 1
    _tokenize_rows(inputs, output, form, flags, execution, overwrite=overwrite, as_json=as_json)
    return 2 if form is PreferenceColumns else 1


def _tokenize_text(
    inputs: Sequence[str],
    output: str,
    flags: TokenizeFlags,
    execution: Execution,
    *,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Tokenizes text, and prints its summary."""
    refuse_with_text(flags)
    documents, special = document_options(flags), special_tokens(flags)
    with stopped_by_signals(_KEPT):
        summary = tokenize(
            inputs,
            output,
            tokenizer=flags.tokenizer,
            vocab_size=flags.vocab_size,
            documents=documents,
            special=special,
            execution=execution,
            overwrite=overwrite,
        )
    print_summary(summary, facts_of_text, as_json=as_json, with_paths=_runs_by_itself())


def _tokenize_rows(
    inputs: Sequence[str],
    output: str,
    form: Form,
    flags: TokenizeFlags,
    execution: Execution,
    *,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Tokenizes chats, pairs or preferences, and prints their summary and warnings."""
    columns, tokenizer = columns_and_tokenizer(form, flags)
    with stopped_by_signals(_KEPT):
        summary = tokenize_fine_tuning(
            inputs,
            output,
            columns,
            tokenizer=tokenizer,
            cutoff_len=flags.cutoff_len,
            no_targets=flags.no_targets or "error",
            undecodable=flags.undecodable,
            on_bad_row=flags.on_bad_row,
            execution=execution,
            overwrite=overwrite,
        )
    print_summary(summary, facts_of_fine_tuning, as_json=as_json, with_paths=_runs_by_itself())
    print_warnings(summary)
    if form is PreferenceColumns and not as_json and _runs_by_itself():
        click.echo(
            f"next       packhorse prepare --input {summary.idx_path} --group-size 2, so that pairs stay together"
        )


def _runs_by_itself() -> bool:
    """Returns whether the user runs `packhorse tokenize`, not `packhorse prepare --tokenizer`, which runs it first."""
    return click.get_current_context().info_name != "prepare"


def _preview(
    inputs: Sequence[str], form: Form | None, flags: TokenizeFlags, num_rows: int
) -> list[tuple[str, ExplainedSequence | str]]:
    """Encodes the first rows or documents.

    Returns:
        (Origin, explained sequence) for each sequence; for a row that is refused, (origin, the reason).
    """
    if form is not None:
        columns, tokenizer = columns_and_tokenizer(form, flags)
        return preview_fine_tuning(inputs, columns, tokenizer=tokenizer, num_rows=num_rows, cutoff_len=flags.cutoff_len)
    refuse_with_text(flags)
    documents, special = document_options(flags), special_tokens(flags)
    if flags.tokenizer is None:
        raise click.UsageError("--show needs a --tokenizer; one that is trained is not there yet.")
    return preview_text(inputs, tokenizer=flags.tokenizer, num_rows=num_rows, documents=documents, special=special)


def _show(rows: Sequence[tuple[str, ExplainedSequence | str]], *, as_json: bool) -> None:
    """Prints the sequences of `_preview`, with the trained tokens marked, and the reasons of refused rows."""
    for origin, explained in rows:
        if isinstance(explained, str):
            click.echo(json.dumps({"title": origin, "refused": explained}) if as_json else f"{origin}: {explained}\n")
            continue
        print_marked(marked_of(origin, explained), as_json=as_json)
