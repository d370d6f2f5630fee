"""Previews: the first rows as they would be tokenized, with what is trained on and where each part comes from.

Owns previews of rows of fine-tuning and of plain text; no file is written. Leaves encoding to `encoding`, and printing
to the command `packhorse tokenize`.
"""

import os
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path

import numpy as np

from packhorse.parameters import message_of
from packhorse.sft import ExplainedSequence, load_chat_tokenizer
from packhorse.sft.tokenizer_loading import tokenizer_json_path
from packhorse.tokenize.columns import AnyColumns
from packhorse.tokenize.documents import DocumentOptions, documents_in, find_documents
from packhorse.tokenize.encoding.encoder import Encoder, SpecialTokens
from packhorse.tokenize.encoding.row_encoder import FROM_TOKENIZER, stretches_of
from packhorse.tokenize.encoding.row_forms import row_encoder
from packhorse.tokenize.input.files import listed
from packhorse.tokenize.input.parts import whole_files
from packhorse.tokenize.input.rows import row_files, rows_of
from packhorse.tokenize.input.skipped import Skipped
from packhorse.tokenize.input.text_check import TextCheck


def preview_fine_tuning(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    columns: AnyColumns,
    *,
    tokenizer: str | os.PathLike[str],
    num_rows: int = 3,
    cutoff_len: int | None = None,
) -> list[tuple[str, ExplainedSequence | str]]:
    """Encodes the first rows and writes nothing.

    Example:
        >>> import tempfile
        >>> from packhorse.tokenize import PairColumns, train_tokenizer
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     here = Path(folder)
        ...     train_tokenizer(["2 + 2 = 4"], vocab_size=300).save(str(here / "tokenizer.json"))
        ...     _ = (here / "sums.jsonl").write_text('{"question": "2 + 2 =", "answer": " 4"}')
        ...     columns = PairColumns(prompt="question", response="answer", eos="<|endoftext|>")
        ...     ((_, row),) = preview_fine_tuning(here / "sums.jsonl", columns, tokenizer=here)
        >>> row.text
        '2 + 2 = 4'

    Args:
        inputs: as in `tokenize_fine_tuning`.
        columns: as in `tokenize_fine_tuning`.
        tokenizer: as in `tokenize_fine_tuning`.
        num_rows: how many rows to encode, at most.
        cutoff_len: as in `tokenize_fine_tuning`.

    Returns:
        (File and line, explained sequence) for each sequence; for a row that is refused, (file and line, the reason).
        Then come ("a row", the fault with file and line) for the first few rows that cannot be read; they are not among
        the `num_rows`.

    Raises:
        FileNotFoundError, ImportError, ValueError: as `tokenize_fine_tuning`, if it is not about a single row.
    """
    path = Path(tokenizer).absolute()
    encoder = row_encoder(columns, load_chat_tokenizer(path), tokenizer_json_path(path), cutoff_len)
    skipped = Skipped()
    check = TextCheck(undecodable="skip", skipped=skipped, on_bad_row="skip")
    files = whole_files(row_files(listed(inputs)).files)
    seen: set[str] = set()  # the optional columns that are there; a preview has no use for them
    rows = chain.from_iterable(rows_of(file.range, encoder.required, encoder.optional, check, seen) for file in files)
    found: list[tuple[str, ExplainedSequence | str]] = []
    for row in islice(rows, num_rows):
        try:
            found += [(str(row.origin), explained) for explained in encoder.explain(*row.values)]
        except ValueError as error:
            found.append((str(row.origin), message_of(error)))
    return [*found, *(("a row", fault) for fault in skipped.bad_named)]


def preview_text(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    tokenizer: str | os.PathLike[str],
    num_rows: int = 3,
    documents: DocumentOptions | None = None,
    special: SpecialTokens | None = None,
) -> list[tuple[str, ExplainedSequence | str]]:
    """Encodes the first documents and writes nothing; every token of text is trained on.

    Example:
        >>> import tempfile
        >>> from packhorse.tokenize import train_tokenizer
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     here = Path(folder)
        ...     train_tokenizer(["2 + 2 = 4"], vocab_size=300).save(str(here / "tokenizer.json"))
        ...     _ = (here / "sums.txt").write_text("2 + 2 = 4")
        ...     special = SpecialTokens(eos="<|endoftext|>")
        ...     ((_, row),) = preview_text(here / "sums.txt", tokenizer=here, special=special)
        >>> [(stretch.text, stretch.field) for stretch in row.stretches]
        [('2 + 2 = 4', 'text'), ('<|endoftext|>', 'tokenizer')]

    Args:
        inputs: as in `tokenize`.
        tokenizer: as in `tokenize`.
        num_rows: how many documents to encode, at most.
        documents: as in `tokenize`.
        special: as in `tokenize`.

    Returns:
        ("document" and its number from 0, explained sequence) for each document. A fault that ends the reading is the
        last entry, with the reason instead of the sequence. If there are too few documents, ("a document", the fault)
        for the first few bad rows are the last entries.

    Raises:
        FileNotFoundError, ImportError, ValueError: as `tokenize`, if it is not about a single document.
    """
    options = documents or DocumentOptions()
    encoder = Encoder.made(
        tokenizer_json_path(Path(tokenizer).absolute()), special or SpecialTokens(), is_trained=False
    )
    skipped = Skipped()
    files = whole_files(find_documents(listed(inputs), options).files)
    texts = chain.from_iterable(documents_in(file.range, options, skipped, encoder.special_to_refuse) for file in files)
    found: list[tuple[str, ExplainedSequence | str]] = []
    try:
        for text in islice(texts, num_rows):
            found.append((f"document {len(found)}", _explained(encoder, text, options.text_column or "text")))
    except ValueError as error:  # about this document, or about several bad rows, which it names
        return [*found, (f"document {len(found)}", message_of(error))]
    if len(found) < num_rows:
        found += [("a document", fault) for fault in skipped.bad_named]
    return found


def _explained(encoder: Encoder, text: str, column: str) -> ExplainedSequence:
    """Encodes a document; returns its tokens with their origins: tokenizer, the text's column, tokenizer."""
    ids = encoder.sequence(text)
    ids_around = {  # None is among them, if there is no such token; no id is equal to it
        encoder.begin_id_to_add,
        encoder.end_id_to_add,
        encoder.special_texts.begin_id,
        encoder.special_texts.end_id,
    }
    begin = 1 if ids and ids[0] in ids_around else 0
    end = len(ids) - 1 if len(ids) > 1 and ids[-1] in ids_around else len(ids)
    origin_ends = ((begin, FROM_TOKENIZER), (end, column), (len(ids), FROM_TOKENIZER))
    return ExplainedSequence(
        text=text,
        input_ids=np.array(ids, dtype=np.int32),
        loss_mask=np.ones(len(ids), dtype=np.bool_),
        stretches=stretches_of(encoder.model, ids, origin_ends),
    )
