"""The token source that a command reads: one path, or one for each component of a mixture; and its options."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from packhorse.client import TokenSource


def token_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --tokens, --id-column and --tokenizer."""
    for option in (  # as decorators, the last of which --help shows first
        click.option(
            "--tokenizer",
            type=click.Path(path_type=Path),
            help="A tokenizer.json that decodes tokens. [default: the one that packhorse tokenize wrote beside them]",
        ),
        click.option("--id-column", help="The column of --tokens that holds ids.  [default: the dataset's]"),
        click.option(
            "--tokens",
            help="Token file or folder of the trainers: adds the sequences' own lengths, rows and tokens. For a "
            "mixture one for each component: NAME=PATH,NAME=PATH.",
        ),
    ):
        command = option(command)
    return command


def open_tokens(tokens: str | None, id_column: str | None = None) -> "TokenSource | None":
    """Opens the token source of --tokens; returns None if no path is given.

    Raises:
        click.UsageError: only --id-column is given.
    """
    if tokens is None:
        if id_column is not None:
            raise click.UsageError("--id-column belongs to --tokens; give --tokens as well")
        return None
    from packhorse.client import as_token_source  # which takes time, and without --tokens is not needed

    return as_token_source(by_component(tokens), id_column=id_column)


def by_component(tokens: str) -> str | dict[str, str]:
    """Returns the path of --tokens, or the paths of a mixture's components, given as NAME=PATH,NAME=PATH.

    Example:
        >>> by_component("corpus.idx"), by_component("web=web.idx,code=code.idx")
        ('corpus.idx', {'web': 'web.idx', 'code': 'code.idx'})
    """
    pairs = [part.partition("=") for part in tokens.split(",")]
    # A path may hold = and commas too.
    if Path(tokens).exists() or not all(name and equals and path for name, equals, path in pairs):
        return tokens
    return {name.strip(): path for name, _, path in pairs}
