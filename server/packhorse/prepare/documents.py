"""Documents out of text files, JSONL, Parquet and folders of source files, and rows out of the tables among them.

Owns finding the files, cutting them into documents and counting what is left out; leaves tokenizing to `tokenize`.
"""

import glob as globbing
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from packhorse.prepare.extras import require

Split = Literal["file", "line", "paragraph"]
"""What is one document of a text file: the whole file, a line, or what stands between blank lines."""
Undecodable = Literal["skip", "error"]
"""What happens to text that is binary or not UTF-8."""
_Kind = Literal["text", "folder", "JSON lines", "Parquet"]
"""What an input is, by its name alone."""

_JSONL_SUFFIXES = (".jsonl", ".ndjson")
_PARQUET_SUFFIXES = (".parquet", ".pq")
_PARQUET_ROWS = 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SKIPPED_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOptions:
    """How inputs are cut into documents. An option that is given needs an input that it is for."""

    split: Split | None = None
    """What is one document of a text file, also below a folder; None for the whole file."""
    text_column: str | None = None
    """Parquet column, or key of each JSON line; None for "text"."""
    glob: str | None = None
    """Which files of a folder: a pattern without a slash is matched at every depth (`*.py`), one with a slash from
    the folder down (`src/**/*.py`); None for all. Names that begin with a dot, and what lies below such folders, are
    left out."""
    undecodable: Undecodable = "skip"
    """What happens to text that is binary or not UTF-8: skipped and counted, or refused."""

    def __post_init__(self) -> None:
        if self.split is not None and self.split not in get_args(Split):
            raise ValueError(f"documents is {self.split!r}; choose one of {', '.join(get_args(Split))}")
        if self.undecodable not in get_args(Undecodable):
            raise ValueError(f"undecodable is {self.undecodable!r}; choose one of {', '.join(get_args(Undecodable))}")


@dataclass(slots=True)
class Skipped:
    """What one pass over the documents left out."""

    empty: int = 0
    """Documents of nothing but white space; null counts too."""
    undecodable: int = 0
    """Documents that are binary or not UTF-8."""
    undecodable_named: list[str] = field(default_factory=list)
    """The first few of them: file, and line where there is one."""


@dataclass(frozen=True, slots=True)
class Row:
    """Some columns of a JSON line or a Parquet row."""

    origin: str
    """File, and line or row."""
    values: tuple[Any, ...]
    """One for each column asked for; None where an optional one is missing."""


def expand_inputs(inputs: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Returns the files and folders that paths and glob patterns name, a pattern's in sorted order.

    Raises:
        FileNotFoundError: a path is not there, or nothing matches a pattern.
        ValueError: no input is given.
    """
    if not inputs:
        raise ValueError("no input is given; name a file, a folder or a glob pattern")
    found: list[Path] = []
    for entry in inputs:
        name = os.fspath(entry)
        if os.path.exists(name):
            found.append(Path(name))
            continue
        matches = sorted(globbing.glob(name, recursive=True))
        if not matches:
            raise FileNotFoundError(f"input {name} is neither there nor a pattern that matches anything")
        found.extend(Path(match) for match in matches)
    return found


def iterate_documents(
    inputs: Sequence[str | os.PathLike[str]],
    options: DocumentOptions | None = None,
    skipped: Skipped | None = None,
) -> Iterator[str]:
    """Yields the text of every document, in the order of the inputs; memory is one document or one Parquet batch.

    Files ending in .jsonl or .ndjson are read as JSON lines, .parquet or .pq as Parquet, any other file as UTF-8
    text; the files of a folder are read as text whatever their ending, and one that is not text is left out whole.

    Args:
        inputs: files, folders and glob patterns.
        options: how they are cut; None for the defaults.
        skipped: counts what is left out while iterating.

    Raises:
        FileNotFoundError: an input is not there.
        ImportError: Parquet is read and pyarrow is not installed.
        ValueError: no input is of a kind that a given option is for, a column or key is missing or not text, a line is
            not JSON, or text is not UTF-8 and `options.undecodable` is "error".
    """
    options = options or DocumentOptions()
    gate = _Gate(options.undecodable, skipped if skipped is not None else Skipped())
    split, text_column = options.split or "file", options.text_column or "text"
    paths = expand_inputs(inputs)
    _check_of_use(options, paths)
    for path in paths:
        match _kind(path):
            case "folder":
                for file in _folder_files(path, options.glob or "*"):
                    for whole in gate.decode(file.read_bytes(), str(file)):
                        yield from [whole] if split == "file" else _file_documents(file, split, gate)
            case "JSON lines":
                yield from _json_texts(path, text_column, gate)
            case "Parquet":
                yield from _parquet_texts(path, text_column, gate)
            case "text":
                yield from _file_documents(path, split, gate)


def iterate_rows(
    inputs: Sequence[str | os.PathLike[str]],
    columns: Sequence[str],
    optional_columns: Sequence[str] = (),
    *,
    undecodable: Undecodable = "skip",
    skipped: Skipped | None = None,
) -> Iterator[Row]:
    """Yields columns of JSON lines and Parquet files, in the order of the inputs; memory as `iterate_documents`.

    Args:
        inputs: files ending in .jsonl, .ndjson, .parquet or .pq, and glob patterns of such.
        columns: Parquet columns, or keys of each JSON line, that must be there.
        optional_columns: the same, where a JSON line may lack the key, but not all of them.
        undecodable: what happens to a line or row that is not UTF-8.
        skipped: counts those while iterating.

    Raises:
        FileNotFoundError: an input is not there.
        ImportError: Parquet is read and pyarrow is not installed.
        ValueError: an input is another kind of file, a column or key is missing, or a line is not JSON.
    """
    gate = _Gate(undecodable, skipped if skipped is not None else Skipped())
    paths = expand_inputs(inputs)
    never_seen = set(optional_columns)
    for path in paths:
        match _kind(path):
            case "JSON lines":
                for origin, row in _json_lines(path, columns, gate):
                    never_seen.difference_update(row)
                    yield Row(origin, tuple(row.get(column) for column in (*columns, *optional_columns)))
            case "Parquet":
                for origin, values in _parquet_rows(path, (*columns, *optional_columns), gate):
                    never_seen.clear()
                    yield Row(origin, values)
            case _:
                raise ValueError(
                    f"{path} has no rows: they come in {', '.join((*_JSONL_SUFFIXES, *_PARQUET_SUFFIXES))} files; "
                    "of a folder, name the files by a quoted pattern such as 'folder/*.jsonl'"
                )
    if never_seen:
        raise ValueError(f"no line of {paths[0]} has the key {min(never_seen)!r}; correct its name, or leave it out")


def _kind(path: Path) -> _Kind:
    if path.is_dir():
        return "folder"
    if path.suffix.lower() in _JSONL_SUFFIXES:
        return "JSON lines"
    return "Parquet" if path.suffix.lower() in _PARQUET_SUFFIXES else "text"


def _check_of_use(options: DocumentOptions, paths: Sequence[Path]) -> None:
    """Refuses an option that no input is for, rather than to pass over it."""
    users: tuple[tuple[str, str | None, tuple[_Kind, ...]], ...] = (
        ("--documents", options.split, ("text", "folder")),
        ("--text-column", options.text_column, ("JSON lines", "Parquet")),
        ("--glob", options.glob, ("folder",)),
    )
    for flag, value, kinds in users:
        if value is not None and not any(_kind(path) in kinds for path in paths):
            raise ValueError(
                f"{flag} {value} is for {' and '.join(kinds)} input, but {paths[0]} is {_kind(paths[0])}: "
                f"leave {flag} out"
            )


@dataclass(frozen=True, slots=True)
class _Gate:
    """Lets text through that is neither empty nor undecodable, and counts the rest. Yields at most one document."""

    undecodable: Undecodable
    skipped: Skipped

    def decode(self, data: bytes, origin: str) -> Iterator[str]:
        """Takes bytes that should be UTF-8; a null byte says that they are not text."""
        if b"\0" in data:
            self.refuse(origin, "holds null bytes, so it is binary")
            return
        try:
            text = data.removeprefix(_BYTE_ORDER_MARK).decode()
        except UnicodeDecodeError as error:
            self.refuse(origin, f"is not UTF-8: {error.reason} at byte {error.start}")
            return
        yield from self.text(text, origin)

    def text(self, text: str | None, origin: str) -> Iterator[str]:
        """Takes text that came decoded."""
        if text is None or not text.strip():
            self.skipped.empty += 1
            return
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                self.refuse(origin, f"has no UTF-8 form: {error.reason} at character {error.start}")
                return
        yield text

    def refuse(self, origin: str, why: str) -> None:
        if self.undecodable == "error":
            raise ValueError(f"{origin} {why}; leave it out, or skip such text with --undecodable skip")
        self.skipped.undecodable += 1
        if len(self.skipped.undecodable_named) < _SKIPPED_NAMED:
            self.skipped.undecodable_named.append(origin)


def _folder_files(folder: Path, pattern: str) -> list[Path]:
    found = folder.glob(pattern) if "/" in pattern else folder.rglob(pattern)
    keyed = ((path.relative_to(folder).parts, path) for path in found)
    visible = sorted((parts, path) for parts, path in keyed if not any(part.startswith(".") for part in parts))
    return [path for _, path in visible if path.is_file()]


def _file_documents(path: Path, split: Split, gate: _Gate) -> Iterator[str]:
    if split == "file":
        yield from gate.decode(path.read_bytes(), str(path))
        return
    for number, part in _lines(path) if split == "line" else _paragraphs(path):
        yield from gate.decode(part.rstrip(b"\r\n"), f"{path}, line {number}")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        yield from enumerate(file, start=1)


def _paragraphs(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields (number of the first line, lines)."""
    lines: list[bytes] = []
    first = 1
    for number, line in _lines(path):
        if line.strip():
            if not lines:
                first = number
            lines.append(line)
        elif lines:
            yield first, b"".join(lines)
            lines = []
    if lines:
        yield first, b"".join(lines)


def _json_texts(path: Path, key: str, gate: _Gate) -> Iterator[str]:
    for origin, row in _json_lines(path, [key], gate):
        text = row[key]
        if text is not None and not isinstance(text, str):
            raise ValueError(f"{origin}: {key!r} is a {type(text).__name__}, not text")
        yield from gate.text(text, origin)


def _json_lines(path: Path, keys: Sequence[str], gate: _Gate) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (file and line, what stands there), with every key."""
    for number, line in _lines(path):
        origin = f"{path}, line {number}"
        data = line.removeprefix(_BYTE_ORDER_MARK).strip()
        if not data:
            continue
        try:
            row = json.loads(data.decode())
        except UnicodeDecodeError as error:
            gate.refuse(origin, f"is not UTF-8: {error.reason} at byte {error.start}")
            continue
        except json.JSONDecodeError as error:
            raise ValueError(f"{origin} is not JSON: {error.msg} at column {error.colno}") from None
        missing = [key for key in keys if not isinstance(row, dict) or key not in row]
        if missing:
            there = ", ".join(row) if isinstance(row, dict) else f"a {type(row).__name__}"
            raise ValueError(f"{origin} has no key {missing[0]!r}; it has {there or 'no keys'}")
        yield origin, row


def _parquet_texts(path: Path, column: str, gate: _Gate) -> Iterator[str]:
    for origin, (text,) in _parquet_rows(path, [column], gate, are_texts=True):
        yield from gate.text(text, origin)


def _parquet_rows(
    path: Path, columns: Sequence[str], gate: _Gate, *, are_texts: bool = False
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yields (file and row, values of the columns)."""
    pa, pq = require("pyarrow"), require("pyarrow.parquet")
    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} is not a Parquet file: {error}") from None
    with file:
        schema = file.schema_arrow
        for column in columns:
            if column not in schema.names:
                raise ValueError(f"{path} has no column {column!r}; it has {', '.join(schema.names) or 'none'}")
            kind = schema.field(column).type
            if are_texts and not _is_text(pa, kind):
                raise ValueError(f"{path}: column {column!r} holds {kind}, not text")
        row = 0
        for batch in file.iter_batches(batch_size=_PARQUET_ROWS, columns=list(columns)):
            cells = [batch.column(column) for column in columns]
            try:
                rows = list(zip(*(column.to_pylist() for column in cells), strict=True))
            except UnicodeDecodeError:  # Parquet does not check what it calls a string
                yield from _readable_rows(path, cells, row, gate)
            else:
                yield from ((f"{path}, row {number}", values) for number, values in enumerate(rows, row))
            row += batch.num_rows


def _readable_rows(
    path: Path, cells: Sequence[Any], first_row: int, gate: _Gate
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yields the rows of a batch in which at least one is not UTF-8."""
    for index in range(len(cells[0])):
        origin = f"{path}, row {first_row + index}"
        try:
            values = tuple(column[index].as_py() for column in cells)
        except UnicodeDecodeError as error:
            gate.refuse(origin, f"is not UTF-8: {error.reason} at byte {error.start}")
            continue
        yield origin, values


def _is_text(pa: Any, kind: Any) -> bool:
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(inner) or pa.types.is_large_string(inner) or pa.types.is_string_view(inner))
