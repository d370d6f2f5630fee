"""The tokens that a dataset was prepared from, as its manifest names them.

Owns that they still are those, and that their loss mask still lies beside them. Leaves reading manifests to its
callers, a client that has only a folder and a server, and the fingerprint to `fingerprint`.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packhorse.tokens.base import TokenSource, TokenSourceError
from packhorse.tokens.choose import as_token_source
from packhorse.tokens.fingerprint import check_tokens


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
    if source.is_mapped:  # of others 64 reads take seconds
        check_tokens(source, record["fingerprint"], num_sequences)
    if record.get("has_loss_mask") and source.loss_mask_beside() is None:
        raise TokenSourceError(
            f"a loss mask lay beside {source.where} when the dataset was prepared, and is gone: copy it there, or give "
            "tokens= and loss_mask= (None to train on prompts too)"
        )
    return source
