"""The tokens that a dataset was prepared from: opening those that its manifest records, and checking them.

Owns the check, by a fingerprint of up to 64 sequences, and the check that a recorded loss mask still lies beside the
tokens. Leaves reading manifests to the callers (a server, or a client with a folder), and the fingerprint itself to
`packhorse.wire`.
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
    """Returns the path of the tokens.

    Args:
        folder: the dataset's folder.
        record: the manifest's record of its tokens, whose `path` is relative to the folder.
    """
    return os.path.normpath(folder / record["path"])


def open_recorded(path: str, record: Mapping[str, Any], num_sequences: int) -> TokenSource:
    """Opens the tokens, and checks that they are the recorded ones, unless the check would take seconds.

    Args:
        path: path of the tokens.
        record: the manifest's record of its tokens: `fingerprint`, and perhaps `column` and `has_loss_mask`.
        num_sequences: number of sequences that the dataset was prepared from, at least 1.

    Raises:
        FileNotFoundError: there are no tokens.
        TokenSourceError: the tokens are others, or the loss mask that lay beside them is gone.
        ValueError: the tokens cannot be read.
    """
    source = as_token_source(path, column=record.get("column"))
    if source.knows_lengths:  # a source that must decode takes seconds for 64 sequences
        check_tokens(source, record["fingerprint"], num_sequences)
    if record.get("has_loss_mask") and source.loss_mask_beside() is None:
        raise TokenSourceError(
            f"a loss mask lay beside {source.where} when the dataset was prepared, and is gone: copy it there, or give "
            "tokens= and loss_mask= (None to train on prompts too)"
        )
    return source


def check_tokens(source: TokenSource, fingerprint: str, num_sequences: int) -> None:
    """Checks that tokens are those that a dataset was prepared from, by a fingerprint of up to 64 sequences.

    Args:
        source: the tokens; it may hold more sequences, such as a file that has grown.
        fingerprint: fingerprint of the first `num_sequences`, as `packhorse.wire.tokens_fingerprint` makes it.
        num_sequences: number of sequences that the dataset was prepared from, at least 1.

    Raises:
        TokenSourceError: the tokens are others, or there are fewer sequences.
    """
    if fingerprint_of(source, num_sequences) != fingerprint:
        raise TokenSourceError(
            "other tokens than those that the dataset was prepared from (made again, with another tokenizer?): "
            f"{source}; prepare it again, or give tokens= with the right ones"
        )


def fingerprint_of(source: TokenSource, num_sequences: int) -> str:
    """Returns the fingerprint of the first `num_sequences` rows of a source, at least 1.

    Raises:
        TokenSourceError: a sequence that is read (up to 64 are) is missing, or is not a list of tokens.
    """
    rows = rows_of_fingerprint(num_sequences)
    lengths = source.lengths(rows)
    tokens = np.split(source.end_to_end(rows, lengths), np.cumsum(lengths)[:-1])
    of_row = dict(zip(rows.tolist(), tokens, strict=True))
    return tokens_fingerprint(of_row.__getitem__, num_sequences)
