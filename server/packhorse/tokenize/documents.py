"""From files to documents, with their keys: text files, files of rows, and folders of either.

Owns cutting files into documents. Leaves finding and reading files to `input`, and tokenizing to `text`.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from packhorse.formats.files import is_folder
from packhorse.formats.keys import check_key
from packhorse.formats.object_store import without_secrets
from packhorse.parameters import message_of, parameter
from packhorse.sft.forms.plain_data import called
from packhorse.tokenize.encoding.keys_file import KeyedText
from packhorse.tokenize.encoding.special_texts import SpecialTexts
from packhorse.tokenize.input.files import TEXT_KINDS, Found, Kind, find_inputs
from packhorse.tokenize.input.json_rows import json_rows
from packhorse.tokenize.input.parts import Cut, whole_files
from packhorse.tokenize.input.ranges import FileRange, LinePlace, lines_of, whole_of
from packhorse.tokenize.input.skipped import OnBadRow, Skipped, Undecodable
from packhorse.tokenize.input.table_rows import table_rows
from packhorse.tokenize.input.text_check import TextCheck, foreign_encoding

Split = Literal["file", "line", "paragraph"]
"""What is one document of a text file: the whole file, a line, or a paragraph between blank lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOptions:
    """How inputs are divided into documents. An option that fits no input is refused."""

    split: Split | None = None
    """What is one document of a text file, also below a folder; None for the whole file. If it is given, .json, .csv
    and .tsv files are text too."""
    text_column: str | None = None
    """Column, or key of each row of JSON; None for "text"."""
    id_column: str | None = None
    """Column, or key of each row of JSON, that names documents; None for none."""
    glob: str | None = None
    """Files to read in a folder: a pattern without a slash matches at every depth (`*.py`), one with a slash from the
    folder down (`src/**/*.py`); None for all. Names that begin with a dot, and everything below such folders, are left
    out.
    """
    undecodable: Undecodable = "skip"
    """What happens to text that is binary or not UTF-8: skipped and counted, or refused."""
    on_bad_row: OnBadRow = "error"
    """What happens to a row that is not JSON, lacks a key or holds no text: refused, or skipped, counted and named."""

    @property
    def columns(self) -> list[str]:
        """Names of the columns to read: the text and, if documents have keys, the keys."""
        return [self.text_column or "text", *([self.id_column] if self.id_column else [])]

    def __post_init__(self) -> None:
        """Refuses values that are no choice of their option."""
        if self.split is not None:
            _check_choice("documents", self.split, get_args(Split))
        _check_choice("undecodable", self.undecodable, get_args(Undecodable))
        _check_choice("on_bad_row", self.on_bad_row, get_args(OnBadRow))


def _check_choice(option: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(parameter(option) + f" is {value!r}; choose one of {', '.join(choices)}")


def iterate_documents(
    inputs: Sequence[str | os.PathLike[str]],
    options: DocumentOptions | None = None,
    skipped: Skipped | None = None,
) -> Iterator[str]:
    r"""Yields the text of every document, in the order of the inputs. Memory holds a document or a batch of rows.

    Files are read by their names: .jsonl and .ndjson as JSON lines, .json as an array of rows or as rows one after the
    other, .parquet, .pq, .arrow, .ipc and .feather as tables, any other as UTF-8 text; JSON and text also compressed
    (.gz, .zst). A folder gives its files of rows, and may hold a README and a LICENSE beside them; a folder without
    rows gives all its text files.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> skipped = Skipped()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "chat.jsonl")
        ...     _ = file.write_text('{"text": "hello"}\n{"text": " "}\n')
        ...     list(iterate_documents([file], skipped=skipped)), skipped.empty
        (['hello'], 1)

    Args:
        inputs: files, folders and glob patterns, or their URLs in an object store.
        options: how files are cut into documents; None for the defaults.
        skipped: counts what is left out while iterating.

    Raises:
        FileNotFoundError: an input is not there.
        ImportError: tables or compressed files are read and pyarrow is not installed.
        ValueError: a file is of a kind that is not read, a folder holds both rows and text, no input is of a kind that
            a given option is for, a column or key is missing or not text, a line is not JSON, or text is not UTF-8 and
            `options.undecodable` is "error".
    """
    options = options or DocumentOptions()
    skipped = skipped if skipped is not None else Skipped()
    for file in whole_files(find_documents(inputs, options).files):
        yield from documents_in(file.range, options, skipped)
        if options.on_bad_row == "error":
            skipped.refuse_bad()


def find_documents(inputs: Sequence[str | os.PathLike[str]], options: DocumentOptions) -> Found:
    """Returns the files that inputs name, in order; refuses an option that fits no file."""
    found = find_inputs(inputs, glob=options.glob, as_text=options.split is not None)
    has_text = any(file.kind in TEXT_KINDS for file in found.files)
    has_rows = any(file.kind not in TEXT_KINDS for file in found.files)
    first = found.files[0]
    shown_path = without_secrets(first.path)
    for name, value, purpose, fits_a_file in (
        ("documents", options.split, "text", has_text),
        ("text_column", options.text_column, "rows", has_rows),
        ("id_column", options.id_column, "rows", has_rows),
    ):
        if value is not None and not fits_a_file:
            kind = "text" if first.kind in TEXT_KINDS else first.kind
            raise ValueError(parameter(name, value) + f" is for {purpose}, but {shown_path} is {kind}: leave it out")
    if options.glob is not None and not any(is_folder(os.fspath(path)) for path in inputs):
        raise ValueError(parameter("glob", options.glob) + f" is for folders, but {shown_path} is a file: leave it out")
    return found


def cut_for(kind: Kind, options: DocumentOptions) -> Cut | None:
    """Returns where a file of a kind may be cut into ranges without cutting a document; None if nowhere."""
    if kind == "JSON lines":
        return "line"
    return None if options.split == "file" else options.split  # only "text" is cut so, see `input/parts`


def documents_in(
    source: FileRange, options: DocumentOptions, skipped: Skipped, special: SpecialTexts | None = None
) -> Iterator[str]:
    """Yields the documents of a range of a file, and counts in `skipped` what is left out.

    Bad rows are only counted here. If they are not to be skipped, the caller calls `Skipped.refuse_bad` at the end, so
    that one error names several of them.

    Args:
        source: the range of a file.
        options: how it is cut into documents.
        skipped: counts what is left out.
        special: special tokens whose texts refuse a document; None for none.
    """
    check = TextCheck(options.undecodable, skipped, options.on_bad_row, special)
    split = options.split or "file"
    if options.id_column and source.kind in TEXT_KINDS:
        raise ValueError(
            f"{source.where} is text, whose documents have no {options.id_column!r}: leave out "
            + parameter("id_column")
        )
    match source.kind:
        case "text":
            yield from _text_documents(source, split, check)
        case "text of a folder":
            # Folders hold files of all kinds, so a file that is not UTF-8 as a whole gives no line or paragraph. A line
            # that spells a special token is a bad line of a good file.
            check_file = replace(check, special=None)
            if split == "file" or check_file.decode(whole_of(source), source.where) is not None:
                yield from _text_documents(source, split, check)
        case "JSON lines" | "JSON":
            rows = json_rows(source, options.columns, check)
            cells_of_json = ((origin, [row[name] for name in options.columns]) for origin, row in rows)
            yield from _row_documents(cells_of_json, options, check)
        case "Parquet" | "Arrow":
            # With keys, which may be numbers, the cells are checked one by one instead of the columns' types.
            cells_of_rows = table_rows(source, options.columns, check, are_texts=not options.id_column)
            yield from _row_documents(cells_of_rows, options, check)


def _text_documents(source: FileRange, split: Split, check: TextCheck) -> Iterator[str]:
    """Yields the documents of a text file, or of a range of one."""
    if split == "file":
        whole = check.decode(whole_of(source), source.where)
        if whole is not None:
            yield whole
        return
    texts = lines_of(source) if split == "line" else _paragraphs(source)
    for number, (origin, data) in enumerate(texts):
        is_first_of_file = number == 0 and source.begin == 0
        if is_first_of_file and (encoding := foreign_encoding(data)):
            check.refuse(source.where, f"is {encoding}, not UTF-8", encoding=encoding)
            return
        document = check.decode(data.rstrip(b"\r\n"), origin)
        if document is not None:
            yield document


def _paragraphs(source: FileRange) -> Iterator[tuple[LinePlace, bytes]]:
    """Yields (where its first line is, its lines joined) for each paragraph; blank lines are between paragraphs."""
    lines: list[bytes] = []
    first: LinePlace | None = None
    for origin, line in lines_of(source):
        if line.strip():
            first = first or origin
            lines.append(line)
        elif first is not None:
            yield first, b"".join(lines)
            lines, first = [], None
    if first is not None:
        yield first, b"".join(lines)


def _row_documents(
    cells_of_rows: Iterable[tuple[LinePlace | str, Sequence[object]]], options: DocumentOptions, check: TextCheck
) -> Iterator[str]:
    """Yields the document of each row that has one, with its key if a column of keys is given.

    `cells_of_rows` has, for each row, where it is and its cells in `options.columns`.
    """
    for origin, cells in cells_of_rows:
        text, key = cells if options.id_column else (*cells, None)
        if text is not None and not isinstance(text, str):
            check.bad(origin, f"{origin}: {options.columns[0]!r} holds {called(text)}, not text")
            continue
        document = check.text(text, origin)
        if document is None:
            continue
        if options.id_column:
            try:
                document = _keyed(document, key, options.id_column, origin)
            except ValueError as error:
                check.bad(origin, message_of(error))
                continue
        yield document


def _keyed(text: str, key: object, column: str, origin: object) -> KeyedText:
    """Returns a document with its key; raises a ValueError if the cell of the column holds none."""
    if key is None or isinstance(key, bool) or not isinstance(key, str | int):
        what = "null" if key is None else f"a {type(key).__name__}"
        raise ValueError(f"{origin}: {column!r} is {what}; a key is text, or a whole number: repair the row")
    document = KeyedText(text)
    document.key = str(key)
    try:
        check_key(document.key)
    except ValueError as error:
        raise ValueError(f"{origin}: {column!r}: {error}") from None
    return document
