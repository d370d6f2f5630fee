"""`packhorse tokenize`: text to Megatron token files.

Owns the command's flags and its printed summary; leaves the work to `packhorse.prepare.tokenization`.
"""

from pathlib import Path
from typing import Literal

import click
from rich.console import Console
from rich.table import Table

from packhorse.prepare.tokenization import TokenizeSummary, tokenize
from packhorse.prepare.tokenizers import DEFAULT_EOS, DEFAULT_VOCAB_SIZE


@click.command("tokenize")
@click.option(
    "--input",
    "inputs",
    required=True,
    multiple=True,
    metavar="PATH",
    help="Text, .jsonl or .parquet file, folder of source files, or quoted glob pattern; may be given several times.",
)
@click.option("--output", required=True, metavar="PREFIX", help="Writes PREFIX.bin, .idx and .tokenizer.json.")
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A local tokenizer.json of the tokenizers library.",
)
@click.option("--train-tokenizer", is_flag=True, help="Train a byte-level BPE on the input instead of --tokenizer.")
@click.option(
    "--vocab-size",
    type=int,
    metavar="N",
    help=f"Tokens of the trained tokenizer, at most.  [default: {DEFAULT_VOCAB_SIZE}]",
)
@click.option(
    "--text-column", default="text", show_default=True, metavar="NAME", help="Parquet column, or key of a JSON line."
)
@click.option(
    "--documents",
    type=click.Choice(["file", "line", "paragraph"]),
    default="file",
    show_default=True,
    help="What is one document of a text file; a paragraph ends at a blank line.",
)
@click.option(
    "--glob",
    default="*",
    show_default=True,
    metavar="PATTERN",
    help="Which files of an input folder, e.g. '*.py' at every depth; each is one document.",
)
@click.option(
    "--undecodable",
    type=click.Choice(["skip", "error"]),
    default="skip",
    show_default=True,
    help="What happens to documents that are binary or not UTF-8.",
)
@click.option(
    "--eos",
    metavar="TOKEN",
    help="Token that ends every sequence.  "
    f"[default: {DEFAULT_EOS} with --train-tokenizer; with --tokenizer, what it adds by itself]",
)
@click.option("--no-eos", is_flag=True, help="Append no end-of-sequence token.")
@click.option("--overwrite", is_flag=True, help="Replace output files that are already there.")
def command(
    inputs: tuple[str, ...],
    output: str,
    tokenizer: Path | None,
    train_tokenizer: bool,
    vocab_size: int | None,
    text_column: str,
    documents: Literal["file", "line", "paragraph"],
    glob: str,
    undecodable: Literal["skip", "error"],
    eos: str | None,
    no_eos: bool,
    overwrite: bool,
) -> None:
    """Turn text into Megatron token files, one sequence for each document."""
    if train_tokenizer == (tokenizer is not None):
        raise click.UsageError("Give either --tokenizer FILE or --train-tokenizer.")
    if vocab_size is not None and not train_tokenizer:
        raise click.UsageError("--vocab-size goes with --train-tokenizer.")
    if no_eos and eos is not None:
        raise click.UsageError("Give either --eos TOKEN or --no-eos.")
    summary = tokenize(
        inputs,
        output,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        text_column=text_column,
        documents=documents,
        glob=glob,
        undecodable=undecodable,
        eos=eos,
        append_eos=not no_eos,
        overwrite=overwrite,
    )
    _print_summary(summary)


def _print_summary(summary: TokenizeSummary) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("documents", f"{summary.documents:,}")
    table.add_row("tokens", f"{summary.tokens:,} ({summary.dtype})")
    table.add_row("mean length", f"{summary.tokens / summary.documents:,.1f} tokens")
    table.add_row("longest", f"{summary.longest:,} tokens")
    table.add_row("vocabulary", f"{summary.vocab_size:,}")
    table.add_row("skipped, empty", f"{summary.skipped_empty:,}")
    table.add_row("skipped, undecodable", f"{summary.skipped_undecodable:,}")
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    # Outside the table, which would cut long paths to the terminal's width; a path may hold brackets.
    console.print(f"index      {summary.idx_path}\ntokenizer  {summary.tokenizer_path}", markup=False)
    if summary.undecodable_named:
        console.print(f"undecodable, e.g. {'; '.join(summary.undecodable_named)}", markup=False)
