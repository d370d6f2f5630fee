"""The manifest's `TokensRecord`: where the tokens of an input are, so that a trainer finds them from the folder.

Owns which inputs have all their tokens in one file or folder on a disk. Other facts about an input are in `inputs`, and
reading tokens is in `packhorse.tokens`.
"""

import os
from pathlib import Path

from packhorse.dataset import TOKENS, PreparedDataset, TokensRecord
from packhorse.formats.flat import FlatTokens
from packhorse.formats.megatron import MegatronTokens, megatron_paths
from packhorse.formats.object_store import is_url
from packhorse.prepare.input import Opened
from packhorse.tokens import TokenSource, as_token_source
from packhorse.tokens.recorded import check_tokens, fingerprint_of
from packhorse.tokens.tables.parquet import ParquetSource
from packhorse.wire import tokens_fingerprint

_TABLES = ("Parquet", "Arrow", "MDS")
"""Kinds of input whose length column may hold tokens."""


def tokens_of(
    opened: Opened, output: Path, tokens_folder: Path | None, before: PreparedDataset | None
) -> TokensRecord | None:
    """Returns where the tokens of a dataset are; None if they are not in one file or folder on a disk.

    Args:
        opened: the input.
        output: the dataset's folder, to which the path is relative.
        tokens_folder: the folder of token files that go into the dataset's folder; None if they stay where they are.
        before: the version to which the input is appended; its tokens must be in the same place.
    """
    if opened.kind in _TABLES:
        return _tokens_of_table(opened, output, before)
    if before is not None:  # the new tokens are in another file than the earlier ones
        return None
    paths = {each.path for each in opened.ranges}
    if opened.kind not in ("Megatron", "flat") or len(paths) != 1 or any(map(is_url, paths)):
        return None
    (path,) = paths
    if opened.kind == "Megatron":
        token_file, named_file = megatron_paths(path)  # a pair is named by its index
    else:
        token_file = named_file = Path(path.removesuffix(".boundaries"))
    relative = _relative(named_file, output) if tokens_folder is None else f"{TOKENS}/{named_file.name}"
    if not token_file.is_file() or not relative.isprintable():  # a file's name may be any bytes, a manifest is text
        return None
    tokens: MegatronTokens | FlatTokens = (
        MegatronTokens(named_file) if opened.kind == "Megatron" else FlatTokens(named_file)
    )
    return TokensRecord(
        path=relative,
        fingerprint=tokens_fingerprint(tokens.read, len(tokens)),
        dtype=tokens.index.dtype.name,
        has_loss_mask=as_token_source(named_file).loss_mask_beside() is not None,
    )


def _tokens_of_table(opened: Opened, output: Path, before: PreparedDataset | None) -> TokensRecord | None:
    """Returns where a table's tokens are; None if its length column holds lengths, or they are not in one place."""
    inputs = None if before is None else before.manifest.inputs
    if before is not None and (inputs is None or inputs.tokens is None):
        return None
    paths, column = [file.path for file in opened.files], opened.columns.length
    folders = {os.path.dirname(path) for path in paths}
    if any(map(is_url, paths)) or len(folders) != 1:
        return None
    is_one_file = len(paths) == 1 and opened.kind != "MDS" and before is None
    named_path = paths[0] if is_one_file else folders.pop() or "."
    relative = _relative(named_path, output)
    try:
        if is_one_file and opened.kind == "Parquet":  # its row groups are read once: to keep them would double the time
            source: TokenSource = ParquetSource(named_path, column=column, cache_bytes=0)
        else:
            source = as_token_source(named_path, column=column)
        num_rows = opened.num_rows + (0 if inputs is None else inputs.rows)
        if source.num_sequences != num_rows or not relative.isprintable():
            return None
        if inputs is not None and inputs.tokens is not None:  # the rows before come first
            check_tokens(source, inputs.tokens.fingerprint, inputs.rows)
        dtype = None if source.token_dtype is None else source.token_dtype.name
        return TokensRecord(path=relative, fingerprint=fingerprint_of(source, num_rows), column=column, dtype=dtype)
    except (ValueError, OSError):  # a column of lengths, rows without tokens, or other files in the folder
        return None


def _relative(path: str | Path, output: Path) -> str:
    """Returns a path as the manifest has it: from the dataset's folder, with slashes."""
    return os.path.relpath(os.path.abspath(path), os.path.abspath(output)).replace(os.sep, "/")
