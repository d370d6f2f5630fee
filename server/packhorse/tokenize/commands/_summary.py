"""The summary of `packhorse tokenize`, as a table or JSON, and its warnings.

Owns the words. Leaves the counts to `packhorse.tokenize`, and when they are printed to `commands/tokenize`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, TypeVar

import click
from rich.markup import escape

from packhorse.cli.shared.printing import facts_table, output_console
from packhorse.tokenize import FineTuningSummary, JoinSummary, TokenizeSummary, unused_lines

_Summary = TypeVar("_Summary", TokenizeSummary, FineTuningSummary, JoinSummary)

_MOST_SPECIAL = 3
"""Special tokens that a summary names."""
_MOST_LEFT_OUT = 5
"""Files left out that a summary names."""


class _Facts(NamedTuple):
    """A summary to print."""

    table: dict[str, str]
    """Name → text of each row of the table. The text may hold markup of rich."""
    paths: dict[str, Path | None]
    """Name → path of each file, printed below the table; None for a file that was not written."""
    examples: dict[str, Sequence[str]]
    """What the examples are of → the examples, printed below the paths; an empty sequence is not printed."""


def print_warnings(summary: FineTuningSummary) -> None:
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


def print_summary(
    summary: _Summary, facts_of: Callable[[_Summary], _Facts], *, as_json: bool, with_paths: bool
) -> None:
    """Prints a summary as a table, with or without the paths of the files below it, or as JSON."""
    if as_json:
        click.echo(json.dumps(asdict(summary), indent=2, default=str))
        return
    facts = facts_of(summary)
    console = output_console()
    console.print(facts_table(facts.table))
    # Outside the table, which would cut long paths to the terminal's width; a path may hold brackets.
    for name, path in facts.paths.items():
        if path is not None and with_paths:
            console.print(f"{name:9}  {path}", markup=False)
    for name, examples in facts.examples.items():
        if examples:
            console.print(f"{name}, e.g. {'; '.join(examples)}", markup=False)


def facts_of_text(summary: TokenizeSummary) -> _Facts:
    """Returns what to print about tokenized text."""
    rows = {
        "read": _files_sentence(summary.files_read),
        "documents": f"{summary.documents:,}",
        "tokens": f"{summary.tokens:,} ({summary.dtype})",
        "mean length": f"{summary.tokens / summary.documents:,.1f} tokens",
        "longest": f"{summary.longest:,} tokens",
        "vocabulary": f"{summary.vocab_size:,}",
        "begin of sequence": "none" if summary.bos is None else escape(summary.bos),
        "end of sequence": "none" if summary.eos is None else escape(summary.eos),
        **_rows_of_skipped(summary),
    }
    if summary.own_ends:
        rows["begins and ends kept"] = f"{summary.own_ends:,} that documents had already, not put there twice"
    rows |= _rows_of_spelled(summary)
    paths = {"index": summary.idx_path, "tokenizer": summary.tokenizer_path, "skipped": summary.skipped_path}
    return _Facts(rows, paths, _examples_of(summary))


def facts_of_fine_tuning(summary: FineTuningSummary) -> _Facts:
    """Returns what to print about tokenized chats, pairs or preferences."""
    rows = {
        "read": _files_sentence(summary.files_read),
        "sequences": f"{summary.sequences:,}",
        "tokens": f"{summary.tokens:,} ({summary.dtype})",
        "trained tokens": f"{summary.trained_tokens:,} ({summary.trained_tokens / summary.tokens:.1%})",
        "mean length": f"{summary.tokens / summary.sequences:,.1f} tokens",
        "longest": f"{summary.longest:,} tokens",
        "vocabulary": f"{summary.vocab_size:,}",
        "cut": f"{summary.cut_sequences:,} sequences, by {summary.cut_tokens:,} tokens",
        "dropped, no targets": f"{summary.dropped_no_targets:,}",
        "dropped, too long": f"{summary.dropped_too_long:,}",
        **_rows_of_spelled(summary),
        **_rows_of_skipped(summary),
    }
    paths = {
        "index": summary.idx_path,
        "loss mask": summary.loss_mask_idx_path,
        "tokenizer": summary.tokenizer_path,
        "skipped": summary.skipped_path,
    }
    examples = {"no targets": summary.dropped_named, "too long": summary.too_long_named, **_examples_of(summary)}
    return _Facts(rows, paths, examples)


def facts_of_joined(summary: JoinSummary) -> _Facts:
    """Returns what to print about joined token files."""
    joined = f"{summary.files:,} token file{'s' if summary.files != 1 else ''}"
    if summary.entries != summary.documents + summary.empty:  # some documents are several entries: their sentences
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
    return _Facts(rows, paths, {})


def _rows_of_spelled(summary: TokenizeSummary | FineTuningSummary) -> dict[str, str]:
    """Returns table rows about special tokens and unknown characters in texts, if there are any."""
    rows = {"special tokens in text": _special_sentence(summary)} if summary.special_in_text else {}
    if summary.unknown_characters:
        rows["unknown characters"] = f"{summary.unknown_characters:,}, which the tokenizer does not know"
    return rows


def _special_sentence(summary: TokenizeSummary | FineTuningSummary) -> str:
    """Returns a sentence about special tokens in texts: how many, which, and what became of them."""
    most_frequent_first = sorted(summary.special_in_text.items(), key=lambda item: -item[1])
    total = sum(summary.special_in_text.values())
    named = ", ".join(f"{escape(text)} {count:,}" for text, count in most_frequent_first[:_MOST_SPECIAL])
    named += ", …" if len(most_frequent_first) > _MOST_SPECIAL else ""
    # In rows of fine-tuning a special token that a text spells always becomes the token.
    num_kept = summary.special_kept if isinstance(summary, TokenizeSummary) else total
    if num_kept == total:
        kept = "all became tokens"
    else:
        kept = f"{num_kept:,} became tokens" if num_kept else "written as text"
    return f"{total:,} ({named}); {kept}"


def _rows_of_skipped(summary: TokenizeSummary | FineTuningSummary) -> dict[str, str]:
    """Returns table rows about documents and rows that were skipped."""
    return {
        "skipped, empty": f"{summary.skipped_empty:,}",
        "skipped, undecodable": f"{summary.skipped_undecodable:,}",
        "skipped, bad": f"{summary.skipped_bad:,}",
    }


def _examples_of(summary: TokenizeSummary | FineTuningSummary) -> dict[str, Sequence[str]]:
    """Returns examples of what was skipped or left out: name → files, lines or rows."""
    return {
        "undecodable": summary.undecodable_named,
        "bad": summary.bad_named,
        "left out": summary.left_out[:_MOST_LEFT_OUT],
    }


def _files_sentence(read: Mapping[str, int]) -> str:
    """Returns how many files of each kind were read, as in "1 JSON lines file, 2 Parquet files"."""
    return ", ".join(f"{count:,} {kind} file{'s' if count != 1 else ''}" for kind, count in read.items())
