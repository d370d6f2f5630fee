"""Joining token files: several Megatron pairs (`.bin`, `.idx`) or flat files become one pair.

Owns joining sentences to documents, joining or copying what is beside the tokens (loss masks, keys, the tokenizer), and
refusing files that do not belong together. Leaves the files' layouts to `packhorse.formats`.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from packhorse.formats import FlatTokens, MegatronTokens, megatron_paths
from packhorse.formats.beside_tokens import keys_path
from packhorse.formats.loss_mask import LOSS_MASK_SUFFIX
from packhorse.formats.mapping import MappedTokens
from packhorse.formats.megatron import masked_paths, write_index
from packhorse.formats.object_store import is_url, without_secrets
from packhorse.storage import AtomicFiles, refuse_existing
from packhorse.tokenize._output import checked_idx_path, remove_stale, saved_tokenizer_path
from packhorse.tokenize.encoding.keys_file import KeysFile
from packhorse.tokenize.encoding.tokenizers import checksum_of, settings_path
from packhorse.tokenize.input.files import expand_inputs, listed

_BOUNDARIES = ".boundaries"
"""Suffix of the index of a flat file: `tokens.bin.boundaries` beside `tokens.bin`."""
_MASK_INDEX = f"{LOSS_MASK_SUFFIX}.idx"
"""The end of the name of a loss mask's index."""
_COPIED_TOKENS = 1 << 21
"""Tokens that are copied at once."""
_MOST_INT32 = 2**31 - 1
"""The largest number of 4 bytes with a sign: an index has a document's length in it, and `.bin` may have a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSummary:
    """Counts and paths of joining."""

    files: int
    """Token files joined."""
    entries: int
    """Entries of the files' indices: sequences, or sentences if a document is several entries."""
    documents: int
    """Sequences written."""
    tokens: int
    """Tokens written."""
    longest: int
    """The longest sequence, in tokens."""
    dtype: str
    """Type of a token in `.bin`, such as "uint16" or "int32"."""
    empty: int
    """Documents without a token, left out."""
    idx_path: Path
    """The index written; the `.bin` is beside it."""
    loss_mask_idx_path: Path | None
    """The loss mask's index; None if the inputs have none."""
    keys_path: Path | None
    """The documents' keys; None if the inputs have none."""
    tokenizer_path: Path | None
    """The tokenizer that is beside every input; None if not all have one."""


def is_token_file(path: str | os.PathLike[str]) -> bool:
    """Whether a path names token files: an index (`.idx`, `.boundaries`), or a `.bin` that has one beside it.

    Example:
        >>> is_token_file("corpus.idx"), is_token_file("chats.jsonl")
        (True, False)

    Args:
        path: a path, pattern or URL. A `.bin` in an object store is not looked up, and so is no token file.
    """
    name = os.fspath(path)
    if name.endswith((".idx", _BOUNDARIES)):
        return True
    return name.endswith(".bin") and not is_url(name) and any(map(os.path.isfile, _indices_of(name)))


def join_token_files(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    overwrite: bool = False,
) -> JoinSummary:
    """Joins Megatron pairs and flat token files into one Megatron pair, with their loss masks and keys.

    A document that is several entries of an index, as with Megatron's `--split-sentences`, becomes one sequence.
    Memory grows with the number of sequences, and not with their tokens.

    Example:
        >>> summary = join_token_files(["corpus.idx"], "joined")
        >>> summary.documents, summary.tokens
        (4, 16)

    Args:
        inputs: `.idx`, `.bin` or `.boundaries` files, or glob patterns of them, in the order of the output.
        output: the prefix X of the new pair; not one of the inputs.
        overwrite: whether to replace existing files.

    Raises:
        FileExistsError: an output is there and overwrite is False.
        FileNotFoundError: an input is not there.
        ValueError: an input is no token file or is damaged, or the inputs do not belong together: their types,
            tokenizers, masks or keys differ.
    """
    paths = _token_paths(listed(inputs))
    idx_path = checked_idx_path(output)
    opened = [FlatTokens(path) if path.endswith(_BOUNDARIES) else MegatronTokens(path) for path in paths]
    if any(os.path.realpath(tokens.path) == os.path.realpath(megatron_paths(output).bin_path) for tokens in opened):
        raise ValueError(f"output {output} is one of the inputs; name another")
    masks = _masks_of(opened)
    tokenizer = _tokenizer_of(opened)
    dtype = _common_dtype(opened)
    lengths = np.concatenate(list(map(_document_lengths, opened)))  # int64 [documents of all files]
    kept_lengths = lengths[lengths > 0]  # an empty document is only an entry, which is left out
    has_keys = _have_keys(opened, len(kept_lengths))
    num_tokens = int(lengths.sum())
    if not len(kept_lengths):
        raise ValueError(f"there is no sequence in {paths[0]}")
    longest = int(kept_lengths.max())
    if longest > _MOST_INT32:
        raise ValueError(f"a document of the input has {longest:,} tokens, more than an index holds")
    saved = saved_tokenizer_path(output)
    tokenizer_copies = [] if tokenizer is None else [settings_path(saved), saved]
    outputs = list(masked_paths(output) if masks else megatron_paths(output))
    refuse_existing([*outputs, *tokenizer_copies], overwrite=overwrite)
    with (
        AtomicFiles(outputs, overwrite=overwrite) as files,
        KeysFile(output, num_tokens=num_tokens, overwrite=overwrite) if has_keys else nullcontext() as keys,
    ):
        *mask_files, token_bin, token_idx = files.files  # in the order of `outputs`; without masks no mask_files
        for tokens in opened:
            _copy_tokens(tokens, dtype, token_bin)
            if keys is not None:
                keys.extend(tokens.path)
        write_index(token_idx, kept_lengths, dtype)
        if masks:
            mask_bin, mask_idx = mask_files
            for mask in masks:
                _copy_tokens(mask, mask.dtype, mask_bin)
            write_index(mask_idx, kept_lengths, masks[0].dtype)
    if tokenizer is not None:
        _copy_tokenizer(tokenizer, saved)
    remove_stale(output, keeps_mask=bool(masks), keeps_keys=has_keys)
    return JoinSummary(
        files=len(opened),
        entries=sum(map(len, opened)),
        documents=len(kept_lengths),
        tokens=num_tokens,
        longest=longest,
        dtype=dtype.name,
        empty=len(lengths) - len(kept_lengths),
        idx_path=idx_path,
        loss_mask_idx_path=_mask_idx_path(output) if masks else None,
        keys_path=keys_path(output) if has_keys else None,
        tokenizer_path=saved if tokenizer is not None else None,
    )


def _token_paths(inputs: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Returns the index of each input, each once, without loss masks, unless all inputs are masks.

    A pattern such as `*.idx` matches masks too; they are joined beside their tokens.
    """
    index_of: dict[str, str] = {}  # real path of an index → its path as it was named; so each index comes once
    for path in expand_inputs(inputs):
        if is_url(path):
            raise ValueError(f"{without_secrets(path)} is in an object store; copy the pair to a disk to join it")
        if not is_token_file(path):
            raise ValueError(
                f"{path} is no token file (.idx with its .bin, or .bin with its .boundaries); one run reads text or "
                "joins token files"
            )
        index = next(filter(os.path.isfile, _indices_of(path))) if path.endswith(".bin") else path
        index_of.setdefault(os.path.realpath(index), index)
    indices = list(index_of.values())
    token_indices = [index for index in indices if not index.endswith(_MASK_INDEX)]
    return token_indices or indices


def _indices_of(bin_path: str) -> tuple[str, str]:
    """Returns the two indices that a `.bin` may have beside it: Megatron's, or a flat file's boundaries."""
    return bin_path.removesuffix(".bin") + ".idx", bin_path + _BOUNDARIES


def _mask_idx_path(output: str | os.PathLike[str]) -> Path:
    return masked_paths(output).mask_idx


def _document_lengths(tokens: MappedTokens) -> NDArray[np.int64]:
    """Returns the number of tokens of each document: int64 [documents]."""
    if not isinstance(tokens, MegatronTokens):
        assert isinstance(tokens, FlatTokens)
        return tokens.lengths.astype(np.int64)
    # Entries of 3, 4 and 5 tokens begin at 0, 3, 7 and end at 12. Documents that begin at the entries 0 and 2, as in
    # document_indices [0, 2, 3], have 7 and 5 tokens.
    bounds = np.concatenate([[0], np.cumsum(tokens.lengths, dtype=np.int64)])
    return np.diff(bounds[np.array(tokens.index.document_indices)])


def _masks_of(opened: Sequence[MappedTokens]) -> list[MegatronTokens]:
    """Returns the loss mask beside each token file; none if no file has one."""
    masks = [_mask_beside(tokens) for tokens in opened]
    found = [mask for mask in masks if mask is not None]
    if not found:
        return []
    if len(found) < len(opened):
        without = opened[masks.index(None)]
        raise ValueError(
            f"{found[0].path} is a loss mask, and {without.path} has none beside it; join files of one kind"
        )
    for tokens, mask in zip(opened, found, strict=True):
        if not np.array_equal(_document_lengths(tokens), _document_lengths(mask)):
            raise ValueError(f"{mask.path} is the loss mask of other sequences than {tokens.path}; write both again")
    return found


def _mask_beside(tokens: MappedTokens) -> MegatronTokens | None:
    """Returns the loss mask beside token files; None if there is none."""
    if not isinstance(tokens, MegatronTokens):  # a flat file has no mask
        return None
    path = _mask_idx_path(tokens.path)
    return MegatronTokens(path) if path.is_file() else None


def _have_keys(opened: Sequence[MappedTokens], num_documents: int) -> bool:
    """Returns whether token files have keys beside them: all, or none.

    Raises a ValueError if only some have, or if joining changes the number of entries, which keys name.
    `num_documents` is the number of sequences that are written.
    """
    with_keys = [tokens for tokens in opened if keys_path(tokens.path).is_file()]
    without_keys = [tokens for tokens in opened if not keys_path(tokens.path).is_file()]
    if not with_keys:
        return False
    if without_keys:
        raise ValueError(
            f"{keys_path(with_keys[0].path)} holds keys, and {without_keys[0].path} has none; join files of one kind, "
            "or remove the keys"
        )
    if num_documents != sum(map(len, opened)):
        raise ValueError(
            f"{keys_path(opened[0].path)} names entries, and joining leaves out empty ones or makes documents of "
            "several; remove that file to join without keys"
        )
    return True


def _tokenizer_of(opened: Sequence[MappedTokens]) -> Path | None:
    """Returns the tokenizer beside the first file, if all files have one; a ValueError if two differ."""
    paths = [saved_tokenizer_path(tokens.path) for tokens in opened]
    found = [path for path in paths if path.is_file()]
    for path in found[1:]:
        # Without its settings, which only name the end-of-sequence token and say how special tokens are split.
        if checksum_of([path]) != checksum_of([found[0]]):
            raise ValueError(
                f"{found[0]} and {path} are two tokenizers, so their token files do not belong together; tokenize both "
                "with the same one"
            )
    return found[0] if len(found) == len(paths) else None


def _copy_tokenizer(source: Path, copy: Path) -> None:
    """Copies a tokenizer's settings, if it has any, and only then the tokenizer."""
    if settings_path(source).is_file():
        shutil.copyfile(settings_path(source), settings_path(copy))
    shutil.copyfile(source, copy)


def _common_dtype(opened: Sequence[MappedTokens]) -> np.dtype[np.integer]:
    """Returns the type of the joined tokens; raises a ValueError if two files hold different types.

    Unsigned tokens of 4 bytes, which flat files may have, become signed ones, as Megatron's are.
    """
    dtypes = [np.dtype("<i4") if tokens.dtype == np.dtype("<u4") else tokens.dtype for tokens in opened]
    for tokens, dtype in zip(opened, dtypes, strict=True):
        if dtype != dtypes[0]:
            raise ValueError(
                f"{opened[0].path} holds {dtypes[0]} and {tokens.path} {dtype}, as files of different tokenizers do; "
                "join files of one tokenizer"
            )
    return dtypes[0]


def _copy_tokens(tokens: MappedTokens, dtype: np.dtype[np.integer], output: BinaryIO) -> None:
    """Copies all tokens to `output` as `dtype`; a ValueError if an unsigned token does not fit the signed type."""
    for chunk in _chunks(tokens):
        if tokens.dtype != dtype and int(chunk.max()) > _MOST_INT32:  # then uint32 becomes int32
            raise ValueError(f"{tokens.path} holds the token id {chunk.max()}, which is above 2^31 - 1")
        output.write(chunk.astype(dtype, copy=False).tobytes())


def _chunks(tokens: MappedTokens) -> Iterator[NDArray[np.integer]]:
    """Yields all tokens of a file, many at once: [up to _COPIED_TOKENS] of the file's dtype."""
    values = np.frombuffer(tokens.mapped(), tokens.dtype)
    for begin in range(0, len(values), _COPIED_TOKENS):
        yield values[begin : begin + _COPIED_TOKENS]
