"""The decoder of `packhorse show`: the tokenizer that --tokenizer names, or the one beside the tokens."""

from collections.abc import Callable
from pathlib import Path

import click

from packhorse.sft.tokenizer_loading import read_tokenizer_json


def decoder(tokenizer: Path | None, tokens: str | None) -> Callable[[list[int]], str] | None:
    """Returns a function from token ids to text; None if no tokenizer is named, and none is beside the tokens."""
    if tokenizer is None:
        beside = None if tokens is None else Path(tokens).with_suffix(".tokenizer.json")
        if beside is None or not beside.is_file():
            return None
        tokenizer = beside
    elif tokens is None:
        raise click.UsageError("--tokenizer decodes tokens; give --tokens as well")
    model = read_tokenizer_json(tokenizer)
    return lambda token_ids: str(model.decode(token_ids, skip_special_tokens=False))
