"""Options that say where tokens are and what they mean: --tokens, --id-column and --tokenizer.

Owns their names, and finding a tokenizer that lies beside its tokens. Leaves reading both to `packhorse.client` and
`packhorse.sft`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from packhorse.client import TokenSource


def token_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --tokens, --id-column and --tokenizer."""
    for option in (
        click.option(
            "--tokenizer",
            type=click.Path(path_type=Path),
            help="A tokenizer.json to decode tokens with; found by itself beside files that packhorse tokenize wrote.",
        ),
        click.option("--id-column", help="The column of --tokens that holds ids; the dataset's own when left out."),
        click.option(
            "--tokens",
            help="Token file or folder, as trainers take it: adds own lengths, rows and tokens. Of a mixture one for "
            "each component: NAME=PATH,NAME=PATH.",
        ),
    ):
        command = option(command)
    return command


def open_tokens(tokens: str | None, id_column: str | None = None) -> "TokenSource | None":
    """Opens a token source; None where none is given.

    Raises:
        ImportError: torch, or what reads the format, is not installed.
        ValueError: nothing readable is there.
    """
    if tokens is None:
        if id_column is not None:
            raise click.UsageError("--id-column says how to find ids in --tokens; give --tokens as well")
        return None
    from packhorse.client import as_token_source

    return as_token_source(by_component(tokens), id_column=id_column)


def by_component(tokens: str) -> str | dict[str, str]:
    """Returns what --tokens names: a path, or the paths of a mixture's components, given as NAME=PATH,NAME=PATH.

    Example:
        >>> by_component("corpus.idx"), by_component("web=web.idx,code=code.idx")
        ('corpus.idx', {'web': 'web.idx', 'code': 'code.idx'})
    """
    pairs = [part.partition("=") for part in tokens.split(",")]
    if Path(tokens).exists() or not all(name and equals and path for name, equals, path in pairs):
        return tokens
    return {name.strip(): path for name, _, path in pairs}


def decoder(tokenizer: Path | None, tokens: str | None) -> Callable[[list[int]], str] | None:
    """Returns what turns tokens into text; None where no tokenizer is at hand.

    Raises:
        ImportError: the tokenizers library is not installed.
        ValueError: the file holds no tokenizer, or there are no tokens to decode.
    """
    if tokenizer is None:
        beside = None if tokens is None else Path(tokens).with_suffix(".tokenizer.json")
        if beside is None or not beside.is_file():
            return None
        tokenizer = beside
    elif tokens is None:
        raise click.UsageError("--tokenizer decodes tokens; give --tokens as well")
    from packhorse.sft.tokenizer import read_tokenizer_json

    model = read_tokenizer_json(tokenizer)
    return lambda numbers: str(model.decode(numbers, skip_special_tokens=False))
