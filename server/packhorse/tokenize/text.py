"""Text to token files: documents in, Megatron `.bin`/`.idx` and the tokenizer out.

Owns the way from one to the other and its summary; leaves documents to `documents`, tokenizers to `tokenizers` and the
files' layout to `packhorse.formats`.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packhorse.formats import MegatronWriter
from packhorse.formats.atomic import refuse_existing
from packhorse.jobs import show_progress
from packhorse.sft.tokenizer import tokenizer_json_path
from packhorse.tokenize._inputs import listed
from packhorse.tokenize._output import is_saved, prefix_paths, saved_tokenizer_path
from packhorse.tokenize.documents import DocumentOptions, Split, iterate_documents
from packhorse.tokenize.gate import Skipped, Undecodable
from packhorse.tokenize.tokenizers import (
    DEFAULT_EOS,
    DEFAULT_VOCAB_SIZE,
    closing_id,
    end_of_sequence,
    find_eos,
    id_limit,
    load_tokenizer,
    save_tokenizer,
    settings_path,
    train_tokenizer,
)

_BATCH_DOCUMENTS = 1024
_BATCH_CHARACTERS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeSummary:
    """What tokenizing wrote."""

    documents: int
    """Sequences written."""
    tokens: int
    """Tokens written, special tokens included."""
    longest: int
    """The longest sequence, in tokens."""
    dtype: str
    """Type of a token in `.bin`: "uint16" or "int32"."""
    vocab_size: int
    """Every token id is below it."""
    eos: str | None
    """The token that ends every sequence; None where none was asked for."""
    skipped_empty: int
    """Documents without anything but white space, or without a token."""
    skipped_undecodable: int
    """Documents that are binary or not UTF-8."""
    undecodable_named: tuple[str, ...]
    """The first few of those."""
    idx_path: Path
    """The index written; the `.bin` stands beside it."""
    tokenizer_path: Path
    """The tokenizer that was used, saved beside the output."""


def tokenize(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    vocab_size: int | None = None,
    text_column: str | None = None,
    documents: Split | None = None,
    glob: str | None = None,
    undecodable: Undecodable = "skip",
    eos: str | None = None,
    append_eos: bool = True,
    overwrite: bool = False,
    progress: bool = True,
) -> TokenizeSummary:
    """Tokenizes text files, JSON lines, Parquet or folders of source files into `X.bin` and `X.idx`.

    Every document becomes one sequence. The tokenizer is kept beside them, as `X.tokenizer.json` with its settings in
    `X.tokenizer_config.json`, and may be used again as `tokenizer`. Memory is bounded by a batch, the longest document
    and 4 bytes a sequence.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     poem = Path(folder, "poem.txt")
        ...     _ = poem.write_bytes(b"one line" + bytes([10]) + b"another")
        ...     summary = tokenize(poem, Path(folder, "poem"), documents="line", vocab_size=300)
        >>> summary.documents, summary.dtype, summary.eos
        (2, 'uint16', '<|endoftext|>')

    Args:
        inputs: files, folders and glob patterns; see `iterate_documents`.
        output: the prefix X; no folder.
        tokenizer: a local tokenizer.json, or the folder that holds it; None trains a byte-level BPE on the same
            documents first.
        vocab_size: size of the trained tokenizer, 16,384 when None; not with `tokenizer`.
        text_column: Parquet column, or key of each JSON line; None for "text".
        documents: what is one document of a text file; None for the whole file.
        glob: which files of a folder; None for all.
        undecodable: what happens to text that is binary or not UTF-8.
        eos: token that ends every sequence. None: `<|endoftext|>` for a trained tokenizer; a local one's own, see
            `end_of_sequence`.
        append_eos: False appends nothing, whatever `eos` says.
        overwrite: whether files already there are replaced.
        progress: whether stderr shows how far it is.

    Raises:
        FileExistsError: an output is there and overwrite is False.
        FileNotFoundError: an input or the tokenizer is not there.
        ImportError: the extra `packhorse[prepare]` is not installed.
        ValueError: an option is wrong or of no use for the input, the output is a folder, no token is known to end a
            sequence, an input cannot be read as what it is, or there is no document at all.
    """
    sources = listed(inputs)
    options = DocumentOptions(split=documents, text_column=text_column, glob=glob, undecodable=undecodable)
    return tokenize_documents(
        lambda skipped: iterate_documents(sources, options, skipped),
        output,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        eos=eos,
        append_eos=append_eos,
        overwrite=overwrite,
        progress=progress,
    )


def tokenize_documents(
    open_documents: Callable[[Skipped], Iterable[str]],
    output: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    vocab_size: int | None = None,
    eos: str | None = None,
    append_eos: bool = True,
    overwrite: bool = False,
    progress: bool = True,
) -> TokenizeSummary:
    """Tokenizes documents from anywhere; otherwise as `tokenize`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tokenize_documents(lambda skipped: ["a b", "c"], Path(folder, "x"), vocab_size=300).documents
        2

    Args:
        open_documents: begins a pass over the documents, and counts into its argument what it leaves out. Training a
            tokenizer takes a pass of its own, so it must give the same documents again.
        output: as in `tokenize`, like all that follow.
        tokenizer: see there.
        vocab_size: see there.
        eos: see there.
        append_eos: see there.
        overwrite: see there.
        progress: see there.

    Raises:
        FileExistsError: as `tokenize`, like all that follow.
        FileNotFoundError: see there.
        ImportError: see there.
        ValueError: see there.
    """
    bin_path, idx_path = prefix_paths(output)
    saved = saved_tokenizer_path(output)
    local = None if tokenizer is None else tokenizer_json_path(Path(tokenizer))
    if local is not None and vocab_size is not None:
        raise ValueError("vocab_size is given together with a tokenizer, which has its own; leave one of them out")
    in_place = local is not None and is_saved(local, saved)
    refuse_existing([bin_path, idx_path, *([] if in_place else [saved, settings_path(saved)])], overwrite=overwrite)

    num_documents: int | None = None  # known to the second pass, from the first
    with show_progress(quiet=not progress) as shown:

        def counted(texts: Iterable[str]) -> Iterator[str]:
            nonlocal num_documents
            num_documents = 0
            for text in shown.track(texts, "training", unit="documents"):
                num_documents += 1
                yield text

        if local is None:
            wanted_eos = (eos or DEFAULT_EOS) if append_eos else None
            model = train_tokenizer(
                counted(open_documents(Skipped())),
                vocab_size=DEFAULT_VOCAB_SIZE if vocab_size is None else vocab_size,
                special_tokens=[wanted_eos] if wanted_eos else [],
            )
        else:
            model = load_tokenizer(local)
            wanted_eos = (eos or end_of_sequence(model, local)) if append_eos else None
        eos_id = _eos_to_append(model, wanted_eos)
        limit = id_limit(model)
        skipped = Skipped()
        longest = 0
        with MegatronWriter(output, vocab_size=limit, overwrite=overwrite) as writer:
            texts = shown.track(open_documents(skipped), "tokenizing", num_documents, "documents")
            for ids in _encode(model, texts):
                if not ids:
                    skipped.empty += 1
                    continue
                if eos_id is not None:
                    ids.append(eos_id)
                writer.append(ids)
                longest = max(longest, len(ids))
            if not len(writer):
                raise ValueError(
                    f"there is no document in the input: {skipped.empty} empty and {skipped.undecodable} undecodable "
                    "were skipped; check the paths, the glob pattern and the text column"
                )
            if not in_place:
                content = model.to_str(pretty=True).encode() if local is None else local.read_bytes()
                kept_eos = wanted_eos if local is None else wanted_eos or find_eos(model, local)
                save_tokenizer(saved, content, eos=kept_eos, split_special_tokens=model.encode_special_tokens)
    return TokenizeSummary(
        documents=len(writer),
        tokens=writer.num_tokens,
        longest=longest,
        dtype=writer.dtype.name,
        vocab_size=limit,
        eos=wanted_eos,
        skipped_empty=skipped.empty,
        skipped_undecodable=skipped.undecodable,
        undecodable_named=tuple(skipped.undecodable_named),
        idx_path=idx_path,
        tokenizer_path=saved,
    )


def _eos_to_append(tokenizer: Any, eos: str | None) -> int | None:
    """The id to append to every sequence; None where there is none, or the tokenizer appends it by itself."""
    if eos is None:
        return None
    eos_id: int | None = tokenizer.token_to_id(eos)
    if eos_id is None:
        raise ValueError(f"eos {eos!r} is not a token of the tokenizer; name one that is (--eos), or none (--no-eos)")
    return None if closing_id(tokenizer) == eos_id else eos_id


def _encode(tokenizer: Any, documents: Iterable[str]) -> Iterator[list[int]]:
    """Encodes batch by batch; a batch is bounded in documents and in characters."""
    batch: list[str] = []
    characters = 0
    for text in documents:
        batch.append(text)
        characters += len(text)
        if len(batch) >= _BATCH_DOCUMENTS or characters >= _BATCH_CHARACTERS:
            yield from (encoding.ids for encoding in tokenizer.encode_batch_fast(batch))
            batch, characters = [], 0
    yield from (encoding.ids for encoding in tokenizer.encode_batch_fast(batch))
