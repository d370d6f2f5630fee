"""Documents out of text files, JSON lines, Parquet and folders of source files.

Owns cutting files into documents; leaves finding files, reading tables and counting what is left out to the files
beside it, and tokenizing to `text`.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from packhorse.formats.object_store import without_secrets
from packhorse.tokenize._inputs import Kind, expand_inputs, kind_of
from packhorse.tokenize._keys import keyed
from packhorse.tokenize._parts import Cut, Weighed, whole_files
from packhorse.tokenize._spans import Line, Span, lines_of, whole_of
from packhorse.tokenize._tables import json_lines, parquet_rows
from packhorse.tokenize.gate import Gate, Skipped, Undecodable

Split = Literal["file", "line", "paragraph"]
"""What is one document of a text file: the whole file, a line, or what stands between blank lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOptions:
    """How inputs are cut into documents. An option that is given needs an input that it is for."""

    split: Split | None = None
    """What is one document of a text file, also below a folder; None for the whole file."""
    text_column: str | None = None
    """Parquet column, or key of each JSON line; None for "text"."""
    id_column: str | None = None
    """Column, or key of each row of JSON, that names documents; None for none."""
    glob: str | None = None
    """Which files of a folder: a pattern without a slash is matched at every depth (`*.py`), one with a slash from
    the folder down (`src/**/*.py`); None for all. Names that begin with a dot, and what lies below such folders, are
    left out."""
    undecodable: Undecodable = "skip"
    """What happens to text that is binary or not UTF-8: skipped and counted, or refused."""

    @property
    def columns(self) -> list[str]:
        """Those that are read: of text, and of keys if there are any."""
        return [self.text_column or "text", *([self.id_column] if self.id_column else [])]

    def __post_init__(self) -> None:
        if self.split is not None and self.split not in get_args(Split):
            raise ValueError(f"documents is {self.split!r}; choose one of {', '.join(get_args(Split))}")
        if self.undecodable not in get_args(Undecodable):
            raise ValueError(f"undecodable is {self.undecodable!r}; choose one of {', '.join(get_args(Undecodable))}")


def iterate_documents(
    inputs: Sequence[str | os.PathLike[str]],
    options: DocumentOptions | None = None,
    skipped: Skipped | None = None,
) -> Iterator[str]:
    """Yields the text of every document, in the order of the inputs; memory is one document or one Parquet batch.

    Files ending in .jsonl or .ndjson are read as JSON lines, .parquet or .pq as Parquet, any other file as UTF-8
    text; the files of a folder are read as text whatever their ending, and one that is not text is left out whole.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> skipped = Skipped()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "chat.jsonl")
        ...     _ = file.write_text('{"text": "hello"} {"text": " "}'.replace("} ", "}" + chr(10)))
        ...     list(iterate_documents([file], skipped=skipped)), skipped.empty
        (['hello'], 1)

    Args:
        inputs: files, folders and glob patterns, or URLs of such in an object store.
        options: how they are cut; None for the defaults.
        skipped: counts what is left out while iterating.

    Raises:
        FileNotFoundError: an input is not there.
        ImportError: Parquet is read and pyarrow is not installed.
        ValueError: no input is of a kind that a given option is for, a column or key is missing or not text, a line is
            not JSON, or text is not UTF-8 and `options.undecodable` is "error".
    """
    options = options or DocumentOptions()
    skipped = skipped if skipped is not None else Skipped()
    for file in files_of(inputs, options):
        yield from documents_of(file.span, options, skipped)


def files_of(inputs: Sequence[str | os.PathLike[str]], options: DocumentOptions) -> list[Weighed]:
    """Returns the files that inputs name, in order; refuses an option that is for none of them."""
    paths = expand_inputs(inputs)
    _check_of_use(options, paths)
    return whole_files(paths, options.glob)


def cut_for(kind: Kind, options: DocumentOptions) -> Cut | None:
    """Returns where a file of a kind may be cut without cutting a document; None where nowhere."""
    if kind == "JSON lines":
        return "line"
    return None if options.split == "file" else options.split


def documents_of(span: Span, options: DocumentOptions, skipped: Skipped) -> Iterator[str]:
    """Yields the documents of a file, or of some of it, and counts what is left out."""
    gate = Gate(options.undecodable, skipped)
    split, text_column = options.split or "file", options.columns[0]
    if options.id_column and span.kind in ("folder", "text"):
        raise ValueError(f"{span.where} is text, whose documents have no {options.id_column!r}: leave out --id-column")
    match span.kind:
        case "folder":
            for whole in gate.decode(whole_of(span), span.where):
                yield from [whole] if split == "file" else _file_documents(span, split, gate)
        case "JSON lines":
            yield from _json_texts(span, options, gate)
        case "Parquet":
            for origin, (text, *ids) in parquet_rows(span, options.columns, gate, are_texts=not options.id_column):
                yield from _named(gate.text(_checked(text, text_column, origin), origin), ids, options, origin)
        case "text":
            yield from _file_documents(span, split, gate)


def _check_of_use(options: DocumentOptions, paths: Sequence[str]) -> None:
    """Refuses an option that no input is for, rather than to pass over it."""
    users: tuple[tuple[str, str | None, tuple[Kind, ...]], ...] = (
        ("--documents", options.split, ("text", "folder")),
        ("--text-column", options.text_column, ("JSON lines", "Parquet")),
        ("--id-column", options.id_column, ("JSON lines", "Parquet")),
        ("--glob", options.glob, ("folder",)),
    )
    for flag, value, kinds in users:
        if value is not None and not any(kind_of(path) in kinds for path in paths):
            raise ValueError(
                f"{flag} {value} is for {' and '.join(kinds)} input, but {without_secrets(paths[0])} is "
                f"{kind_of(paths[0])}: leave {flag} out"
            )


def _file_documents(span: Span, split: Split, gate: Gate) -> Iterator[str]:
    if split == "file":
        yield from gate.decode(whole_of(span), span.where)
        return
    for origin, part in lines_of(span) if split == "line" else _paragraphs(span):
        yield from gate.decode(part.rstrip(b"\r\n"), origin)


def _paragraphs(span: Span) -> Iterator[tuple[Line, bytes]]:
    """Yields (its first line, lines)."""
    lines: list[bytes] = []
    first: Line | None = None
    for origin, line in lines_of(span):
        if line.strip():
            first = first or origin
            lines.append(line)
        elif first is not None:
            yield first, b"".join(lines)
            lines, first = [], None
    if first is not None:
        yield first, b"".join(lines)


def _json_texts(span: Span, options: DocumentOptions, gate: Gate) -> Iterator[str]:
    for origin, row in json_lines(span, options.columns, gate):
        text, *ids = (row[name] for name in options.columns)
        yield from _named(gate.text(_checked(text, options.columns[0], origin), origin), ids, options, origin)


def _checked(text: object, column: str, origin: object) -> str | None:
    if text is not None and not isinstance(text, str):
        raise ValueError(f"{origin}: {column!r} is a {type(text).__name__}, not text")
    return text


def _named(texts: Iterator[str], ids: Sequence[object], options: DocumentOptions, origin: object) -> Iterator[str]:
    """Yields a row's document, if it has any, with its key where a column holds keys."""
    for text in texts:
        yield keyed(text, ids[0], options.id_column, origin) if options.id_column else text
