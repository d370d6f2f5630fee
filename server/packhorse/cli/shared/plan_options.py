"""Options that shape a plan, which `prepare` and `shard` share.

Owns their names and help. Leaves what they do, and which values go together, to `packhorse.prepare`.
"""

from collections.abc import Callable
from typing import Any, get_args

import click

from packhorse.dataset import Keep, OverLength


def plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the columns to read, --max-seq-len, and what sequences may be and get; all by the names of arguments."""
    for option in (
        click.option(
            "--extra-tokens",
            type=int,
            default=0,
            show_default=True,
            metavar="N",
            help="Keep N tokens free for each sequence beside its own, before rounding (BOS, EOS).",
        ),
        click.option(
            "--align",
            type=int,
            default=1,
            show_default=True,
            metavar="N",
            help="Round each sequence's room up to a multiple of N tokens (context and tensor parallelism).",
        ),
        click.option(
            "--max-sequences-per-bin", type=int, metavar="K", help="The most sequences in a bin.  [default: no limit]"
        ),
        click.option(
            "--keep",
            type=click.Choice(get_args(Keep)),
            default="head",
            show_default=True,
            help="Which end of a sequence --over-length truncate keeps.",
        ),
        click.option(
            "--over-length",
            type=click.Choice(get_args(OverLength)),
            default="error",
            show_default=True,
            help="What happens to sequences longer than --max-seq-len; over_length.npy names them.",
        ),
        click.option("--max-seq-len", required=True, type=int, metavar="N", help="A bin's capacity in tokens."),
        click.option(
            "--id-column",
            metavar="NAME",
            help="Column of ids or keys, each once: integers are ids; text, such as URLs, UUIDs and "
            "decimals are keys, and ids are rows then.  [default: the row, from 0]",
        ),
        click.option(
            "--length-column",
            metavar="NAME",
            help="Column of lengths in tokens, or of lists of tokens.  "
            "[default: the column that evidently holds tokens]",
        ),
    ):
        command = option(command)
    return command
