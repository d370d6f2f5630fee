"""`packhorse tokenize`: text to Megatron token files; chats, pairs and preferences with a loss mask.

Owns the command's flags, which flags go together, and the printed summary. Leaves the work to `packhorse.tokenize`.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from packhorse.cli import in_flags, stopped_by_signals
from packhorse.cli.shared.flags import flags_of
from packhorse.cli.shared.options import store_timeout_option
from packhorse.cli.shared.printing import facts_table, output_console
from packhorse.parameters import message_of
from packhorse.pictures.commands.marked_output import marked_of, print_marked
from packhorse.tokenize import (
    DEFAULT_EOS,
    DEFAULT_VOCAB_SIZE,
    ChatColumns,
    DocumentOptions,
    Execution,
    FineTuningSummary,
    JoinSummary,
    PairColumns,
    PreferenceColumns,
    SpecialTokens,
    TokenizeSummary,
    columns_of,
    is_token_file,
    join_token_files,
    preview_fine_tuning,
    preview_text,
    tokenize,
    tokenize_fine_tuning,
    unused_lines,
)

_Form = type[ChatColumns | PairColumns | PreferenceColumns]

_FORM_COLUMNS = ("messages", "prompt", "response", "chosen", "rejected")
"""The columns that make a form; each has a flag, such as --messages-column."""

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
    **given: Any,
) -> int:
    """Turn text into Megatron token files, one sequence for each document, chat or prompt/response pair.

    Sequences keep the order of the inputs, for any number of workers.
    """
    # Returns the sequences of each row: 2 for preferences, else 1. `prepare --tokenizer` makes groups of so many.
    if output is None and num_shown is None:
        raise click.UsageError("Missing option '--output'.")
    inputs = (*inputs, *_expanded(more))
    if any(map(is_token_file, inputs)) and output is not None:
        _refuse_with_token_files(inputs, train_tokenizer, given)
        _print_summary(join_token_files(inputs, output, overwrite=overwrite), _facts_of_joined, as_json=as_json)
        return 1
    if train_tokenizer == (given["tokenizer"] is not None):
        raise click.UsageError("Give either --tokenizer FILE or --train-tokenizer.")
    if given["vocab_size"] is not None and not train_tokenizer:
        raise click.UsageError("--vocab-size goes with --train-tokenizer.")
    if given["no_eos"] and given["eos"] is not None:
        raise click.UsageError("Give either --eos TOKEN or --no-eos.")
    _set_standard_columns(inputs, train_tokenizer, given)
    form = _form(**{name: given[f"{name}_column"] for name in _FORM_COLUMNS})
    shared: dict[str, Any] = {"execution": execution, "overwrite": overwrite}
    shared |= {name: given[name] for name in ("undecodable", "on_bad_row")}
    if num_shown is not None:
        _show(_preview(inputs, form, given, num_shown), as_json=as_json)
    if output is None:
        return 1
    if form is None:
        options = _text_options(given)
        with stopped_by_signals(_KEPT):
            summary = tokenize(inputs, output, **options, execution=execution, overwrite=overwrite)
        _print_summary(summary, _facts_of_text, as_json=as_json)
        return 1
    columns, options = _columns(form, given), _row_options(given)
    with stopped_by_signals(_KEPT):
        made = tokenize_fine_tuning(inputs, output, columns, **options, **shared)
    _print_summary(made, _facts_of_rows, as_json=as_json)
    _warn(made)
    if form is not PreferenceColumns:
        return 1
    if not as_json and _is_whole():
        click.echo(f"next       packhorse prepare --input {made.idx_path} --group-size 2, so that pairs stay together")
    return 2


def _set_standard_columns(inputs: Sequence[str], train_tokenizer: bool, given: dict[str, Any]) -> None:
    """Sets the column flags in `given` from standard column names, if no flag says what the rows hold."""
    text = ("text_column", "id_column", "documents", "glob", "bos")
    if train_tokenizer or any(given[name] is not None for name in text):
        return
    if any(given[f"{name}_column"] is not None for name in _FORM_COLUMNS):
        return
    try:
        columns = columns_of(inputs)
    except ValueError as error:
        raise click.UsageError(in_flags(message_of(error), click.get_current_context().command.params)) from None
    for name in _FORM_COLUMNS:
        given[f"{name}_column"] = getattr(columns, name, None)


def _preview(
    inputs: Sequence[str], form: _Form | None, given: dict[str, Any], num_rows: int
) -> Sequence[tuple[str, Any]]:
    """Encodes the first rows; returns (origin, explained sequence, or why the row is refused) for each sequence."""
    if form is not None:
        columns, options = _columns(form, given), _row_options(given)
        chosen = {name: options[name] for name in ("tokenizer", "cutoff_len")}
        return preview_fine_tuning(inputs, columns, num_rows=num_rows, **chosen)
    options = _text_options(given)
    if options["tokenizer"] is None:
        raise click.UsageError("--show needs a --tokenizer; one that is trained is not there yet.")
    chosen = {name: options[name] for name in ("tokenizer", "documents", "special")}
    return preview_text(inputs, num_rows=num_rows, **chosen)


def _show(rows: Sequence[tuple[str, Any]], *, as_json: bool) -> None:
    """Prints the rows of a preview, with the trained tokens marked."""
    for origin, explained in rows:
        if isinstance(explained, str):
            click.echo(json.dumps({"title": origin, "refused": explained}) if as_json else f"{origin}: {explained}\n")
            continue
        print_marked(marked_of(origin, explained), as_json=as_json)


def _expanded(more: Sequence[str]) -> Sequence[str]:
    """Returns arguments without a flag, which are files to which a shell expanded an unquoted pattern after --input.

    Refuses an argument that is no file.
    """
    for path in more:
        if not os.path.exists(path):
            raise click.UsageError(
                f"Got unexpected extra argument {path!r}. Give --input before each file, or a pattern in quotes: "
                "--input '*.jsonl'."
            )
    return more


def _refuse_with_token_files(inputs: Sequence[str], train_tokenizer: bool, given: Mapping[str, Any]) -> None:
    """Refuses flags of text and chats if the input is token files."""
    usual = {"undecodable": "skip", "on_bad_row": "error"}
    flags = [f"--{name.replace('_', '-')}" for name, value in given.items() if value and usual.get(name) != value]
    flags += ["--train-tokenizer"] if train_tokenizer else []
    if flags:
        named = next(filter(is_token_file, inputs))
        raise click.UsageError(
            f"{named} holds tokens already: token files are joined into one pair as they are, so leave out "
            f"{', '.join(flags)}."
        )


def _text_options(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the keywords of `tokenize`; refuses flags of chats and pairs."""
    for name in ("turn_end", "strict", "ignore", "cutoff"):
        if given[name]:
            flag = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{flag} goes with --messages-column, --prompt-column or --chosen-column.")
    is_templated = given["tools_column"] is not None or given["chat_template"] is not None or given["template_options"]
    if is_templated or given["train_turns"] is not None:
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


def _columns(form: Any, given: dict[str, Any]) -> ChatColumns | PairColumns | PreferenceColumns:
    """Returns the form of the rows with the columns and options that the flags give; refuses flags of other forms."""
    is_chat = form is ChatColumns
    if is_chat and (given["bos"] is not None or given["no_eos"]):
        raise click.UsageError(
            "--bos and --no-eos have no effect with --messages-column: the chat template begins and ends turns."
        )
    if not is_chat and given["train_turns"] is not None:
        raise click.UsageError("--train-turns goes with --messages-column.")
    names = {name: column for name in _FORM_COLUMNS if (column := given[f"{name}_column"]) is not None}
    template = {
        "tools": given["tools_column"],
        "chat_template": given["chat_template"],
        "template_options": dict(map(_template_option, given["template_options"])),
        "turn_end": given["turn_end"] or "template",
        "cutoff": given["cutoff"] or "oldest",
        "strict": given["strict"],
        "special_in_text": given["special_in_text"] or "keep",
        "ignore": given["ignore"],
    }
    if is_chat:
        return ChatColumns(**names, **template, train_turns=given["train_turns"] or "all", eos=given["eos"])
    ending = not given["no_eos"] if given["eos"] is None else given["eos"]
    return form(**names, **template, eos=ending)


def _row_options(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the keywords of `tokenize_fine_tuning`; refuses flags of plain text."""
    if given["special_in_text"] == "text":
        raise click.UsageError(
            "--special-in-text text is for plain text: in chats and pairs a special token's text becomes the token, as "
            "in transformers. --special-in-text error refuses such rows."
        )
    if given["bos"] is not None:
        raise click.UsageError("--bos is for plain text; for prompts the tokenizer adds its own beginning.")
    if any(given[name] is not None for name in ("text_column", "id_column", "documents", "glob")):
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


def _form(**named: str | None) -> _Form | None:
    """Returns the form of rows that the given columns make; None for text."""
    given = {name for name, column in named.items() if column is not None}
    if given - {"prompt"} == {"chosen", "rejected"}:
        return PreferenceColumns
    if given == {"prompt", "response"}:
        return PairColumns
    if given == {"messages"}:
        return ChatColumns
    if given:
        raise click.UsageError(
            "Give --messages-column; or --prompt-column and --response-column; or --chosen-column and "
            "--rejected-column, with or without --prompt-column."
        )
    return None


def _template_option(text: str) -> tuple[str, Any]:
    """Parses NAME=VALUE; a VALUE that is not JSON is text."""
    name, mark, value = text.partition("=")
    if not mark or not name.isidentifier():
        raise click.UsageError(f"--template-option {text} is not NAME=VALUE, such as enable_thinking=false.")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


_Facts = tuple[dict[str, str], dict[str, Path | None], dict[str, Sequence[str]]]
"""A summary to print: (rows of its table, name → path of each file, name → examples printed below)."""


def _warn(summary: FineTuningSummary) -> None:
    """Warns on stderr of fields that are not in the tokens, and of trained turns without an end."""
    for line in unused_lines(summary.unused):
        click.echo(line, err=True)
    if summary.open_turns:
        click.echo(
            f"no end     {summary.open_turns:,} trained turns have no token that ends them, e.g. "
            f"{summary.open_named[0]}. A model learns no end from them. --turn-end next takes the next message's mark, "
            "--eos TOKEN ends the rows",
            err=True,
        )


def _is_whole() -> bool:
    """Whether the user runs `packhorse tokenize`, and not `packhorse prepare --tokenizer`, which tokenizes first."""
    return click.get_current_context().info_name != "prepare"


def _print_summary(summary: Any, facts_of: Callable[[Any], _Facts], *, as_json: bool) -> None:
    """Prints a summary as a table, or as JSON."""
    if as_json:
        click.echo(json.dumps(asdict(summary), indent=2, default=str))
        return
    rows, paths, named = facts_of(summary)
    console = output_console()
    console.print(facts_table(rows))
    # Outside the table, which would cut long paths to the terminal's width; a path may hold brackets.
    for name, path in paths.items():
        if path is not None and _is_whole():
            console.print(f"{name:9}  {path}", markup=False)
    for name, some in named.items():
        if some:
            console.print(f"{name}, e.g. {'; '.join(some)}", markup=False)


def _facts_of_text(summary: TokenizeSummary) -> _Facts:
    """Returns what to print about tokenized text."""
    rows = {
        "read": _files(summary.files_read),
        "documents": f"{summary.documents:,}",
        "tokens": f"{summary.tokens:,} ({summary.dtype})",
        "mean length": f"{summary.tokens / summary.documents:,.1f} tokens",
        "longest": f"{summary.longest:,} tokens",
        "vocabulary": f"{summary.vocab_size:,}",
        "begin of sequence": "none" if summary.bos is None else escape(summary.bos),
        "end of sequence": "none" if summary.eos is None else escape(summary.eos),
        **_skipped(summary),
    }
    if summary.own_ends:
        rows["begins and ends kept"] = f"{summary.own_ends:,} that documents had already, not put there twice"
    rows |= _spelled(summary)
    paths = {"index": summary.idx_path, "tokenizer": summary.tokenizer_path, "skipped": summary.skipped_path}
    return rows, paths, _named(summary)


def _spelled(summary: TokenizeSummary | FineTuningSummary) -> dict[str, str]:
    """Returns table rows about special tokens and unknown characters in texts, if there are any."""
    rows = {"special tokens in text": _special(summary)} if summary.special_in_text else {}
    if summary.unknown_characters:
        rows["unknown characters"] = f"{summary.unknown_characters:,}, which the tokenizer does not know"
    return rows


def _special(summary: TokenizeSummary | FineTuningSummary) -> str:
    """Returns a sentence about special tokens in texts: how many, which, and what became of them."""
    counts = sorted(summary.special_in_text.items(), key=lambda item: -item[1])
    total = sum(count for _, count in counts)
    some = ", ".join(f"{escape(text)} {count:,}" for text, count in counts[:3]) + (", …" if len(counts) > 3 else "")
    num_kept = summary.special_kept if isinstance(summary, TokenizeSummary) else total
    kept = "all became tokens" if num_kept == total else "written as text"
    if 0 < num_kept < total:
        kept = f"{num_kept:,} became tokens"
    return f"{total:,} ({some}); {kept}"


def _facts_of_rows(summary: FineTuningSummary) -> _Facts:
    """Returns what to print about tokenized chats, pairs or preferences."""
    rows = {
        "read": _files(summary.files_read),
        "sequences": f"{summary.sequences:,}",
        "tokens": f"{summary.tokens:,} ({summary.dtype})",
        "trained tokens": f"{summary.trained_tokens:,} ({summary.trained_tokens / summary.tokens:.1%})",
        "mean length": f"{summary.tokens / summary.sequences:,.1f} tokens",
        "longest": f"{summary.longest:,} tokens",
        "vocabulary": f"{summary.vocab_size:,}",
        "cut": f"{summary.cut_sequences:,} sequences, by {summary.cut_tokens:,} tokens",
        "dropped, no targets": f"{summary.dropped_no_targets:,}",
        "dropped, too long": f"{summary.dropped_too_long:,}",
        **_spelled(summary),
        **_skipped(summary),
    }
    paths = {
        "index": summary.idx_path,
        "loss mask": summary.loss_mask_idx_path,
        "tokenizer": summary.tokenizer_path,
        "skipped": summary.skipped_path,
    }
    return rows, paths, {"no targets": summary.dropped_named, "too long": summary.too_long_named, **_named(summary)}


def _facts_of_joined(summary: JoinSummary) -> _Facts:
    """Returns what to print about joined token files."""
    joined = f"{summary.files:,} token file{'s' if summary.files != 1 else ''}"
    if summary.entries != summary.documents + summary.empty:
        joined += f", and {summary.entries:,} sentences to documents"
    rows = {
        "joined": joined,
        "documents": f"{summary.documents:,}",
        "tokens": f"{summary.tokens:,} ({summary.dtype})",
        "longest": f"{summary.longest:,} tokens",
        "skipped, empty": f"{summary.empty:,}",
    }
    paths = {
        "index": summary.idx_path,
        "loss mask": summary.loss_mask_idx_path,
        "keys": summary.keys_path,
        "tokenizer": summary.tokenizer_path,
    }
    return rows, paths, {}


def _skipped(summary: TokenizeSummary | FineTuningSummary) -> dict[str, str]:
    """Returns table rows about documents and rows that were skipped."""
    return {
        "skipped, empty": f"{summary.skipped_empty:,}",
        "skipped, undecodable": f"{summary.skipped_undecodable:,}",
        "skipped, bad": f"{summary.skipped_bad:,}",
    }


def _named(summary: TokenizeSummary | FineTuningSummary) -> dict[str, Sequence[str]]:
    """Returns examples of what was skipped or left out: name → files, lines or rows."""
    return {
        "undecodable": summary.undecodable_named,
        "bad": summary.bad_named,
        "left out": summary.left_out[:5],
    }


def _files(read: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {kind} file{'s' if count != 1 else ''}" for kind, count in read.items())
