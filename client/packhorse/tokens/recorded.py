"""The tokens that a dataset was prepared from, as its manifest names them, and whether others are the same.

Owns which rows decide, and that their loss mask still lies beside them. Leaves reading manifests to its callers, a
client that has only a folder and a server, and the fingerprint itself to `packhorse.wire`.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from packhorse.tokens.base import TokenSource, TokenSourceError
from packhorse.tokens.choose import as_token_source
from packhorse.wire import rows_of_fingerprint, tokens_fingerprint


def recorded_path(folder: Path, record: Mapping[str, Any]) -> str:
    """Returns where the tokens are.

    Args:
        folder: the dataset's.
        record: the manifest's record of its tokens.
    """
    return os.path.normpath(folder / record["path"])


def open_recorded(path: str, record: Mapping[str, Any], num_sequences: int) -> TokenSource:
    """Opens the tokens, and compares them where that takes no seconds.

    Args:
        path: where they are.
        record: the manifest's record of its tokens.
        num_sequences: that the dataset was prepared from, at least 1.

    Raises:
        FileNotFoundError: they are not there.
        TokenSourceError: others are there, or the loss mask that lay beside them is gone.
        ValueError: they cannot be read.
    """
    source = as_token_source(path, column=record.get("column"))
    if source.knows_lengths:  # of others 64 reads take seconds
        check_tokens(source, record["fingerprint"], num_sequences)
    if record.get("has_loss_mask") and source.loss_mask_beside() is None:
        raise TokenSourceError(
            f"a loss mask lay beside {source.where} when the dataset was prepared, and is gone: copy it there, or give "
            "tokens= and loss_mask= (None to train on prompts too)"
        )
    return source


def check_tokens(source: TokenSource, fingerprint: str, num_sequences: int) -> None:
    """Refuses other tokens than those that a dataset was prepared from, by a fingerprint of 64 sequences.

    Args:
        source: the tokens; it may hold more sequences, as a file does that has grown.
        fingerprint: of the first `num_sequences`, as `packhorse.wire.tokens_fingerprint` makes it.
        num_sequences: at least 1.

    Raises:
        TokenSourceError: they are others, or fewer.
    """
    if fingerprint_of(source, num_sequences) != fingerprint:
        raise TokenSourceError(
            "other tokens than those that the dataset was prepared from (made again, with another tokenizer?): "
            f"{source}; prepare it again, or give tokens= with the right ones"
        )


def fingerprint_of(source: TokenSource, num_sequences: int) -> str:
    """Returns the fingerprint of the first `num_sequences` rows of a source, at least 1.

    Raises:
        TokenSourceError: one of the 64 that are read is missing, or is no list of tokens.
    """
    rows = rows_of_fingerprint(num_sequences)
    lengths = source.lengths(rows)
    tokens = np.split(source.end_to_end(rows, lengths), np.cumsum(lengths)[:-1])
    of_row = dict(zip(rows.tolist(), tokens, strict=True))
    return tokens_fingerprint(of_row.__getitem__, num_sequences)
