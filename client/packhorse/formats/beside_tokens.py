"""Names of the files beside tokens `X.bin`: of their keys, and of what tokenizing left out of them.

Owns the names of the column and the metadata in the file of keys too. Leaves the names of a loss mask's files to
`loss_mask`, reading what was left out to `left_out`, and writing all these files to `packhorse.tokenize`.
"""

import os
from pathlib import Path

from packhorse.formats.megatron.paths import megatron_paths

KEY_COLUMN = "key"
"""The only column of the file of keys."""

NUM_TOKENS = "packhorse.tokens"
"""Name of a field in the metadata of that file's schema: the number of tokens in Megatron's files beside it."""


def keys_path(tokens: str | os.PathLike[str]) -> Path:
    """Returns the path of `X.keys.arrow`, the keys of the tokens `X`, `X.bin` or `X.idx`.

    It is an Arrow file of one column, `key`, with a row for each sequence.

    Example:
        >>> keys_path("data/corpus.idx").name
        'corpus.keys.arrow'
    """
    return megatron_paths(tokens).idx_path.with_suffix(".keys.arrow")


def unused_name(tokens: str) -> str:
    """Returns the path or URL of `X.unused.json` for a token file's path or URL `X.bin`.

    Example:
        >>> unused_name("s3://bucket/sft.bin")
        's3://bucket/sft.unused.json'
    """
    return tokens.removesuffix(".bin") + ".unused.json"


def unused_path(tokens: str | os.PathLike[str]) -> Path:
    """Returns the path of `X.unused.json` for the tokens `X`, `X.bin` or `X.idx`; only chats and pairs have this file.

    Example:
        >>> unused_path("sft.idx").name
        'sft.unused.json'
    """
    return Path(unused_name(str(megatron_paths(tokens).bin_path)))


def skipped_path(tokens: str | os.PathLike[str]) -> Path:
    """Returns the path of `X.skipped.jsonl` for the tokens `X`, `X.bin` or `X.idx`; it has a line for each skipped row.

    Example:
        >>> skipped_path("sft.idx").name
        'sft.skipped.jsonl'
    """
    return megatron_paths(tokens).idx_path.with_suffix(".skipped.jsonl")
