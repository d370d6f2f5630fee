"""The input's records in a manifest: names, files, skipped rows and keys.

Owns how inputs are named, which lists are in the manifest and which in files beside it, and the pass over keys. Leaves
reading to `input`, and the table of keys to `packhorse.dataset`.
"""

import glob
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import (
    INPUTS,
    MOST_LISTED,
    SKIPPED,
    TOKENS,
    DuplicateKeyError,
    InputRecord,
    Inputs,
    KeyRecord,
    KeyRows,
    PreparedDataset,
    SkippedRow,
    SkippedRows,
    TokensRecord,
    read_records,
    write_keys,
    write_records,
)
from packhorse.formats.files import absolute, as_path
from packhorse.formats.flat import FlatTokens
from packhorse.formats.left_out import left_out_of
from packhorse.formats.megatron import MegatronTokens, megatron_paths
from packhorse.formats.object_store import is_url, without_secrets
from packhorse.jobs import Progress
from packhorse.parameters import parameter
from packhorse.prepare.input import Fault, Opened, changed
from packhorse.tokens import as_token_source
from packhorse.tokens.recorded import check_tokens, fingerprint_of
from packhorse.wire import tokens_fingerprint

Source = str | os.PathLike[str]
"""A file, a folder, a pattern, or the URL of one in an object store, to read."""

_MOST_CHARACTERS = 240
_MOST_NAMES = 8

_TABLES = ("Parquet", "Arrow", "MDS")
"""Kinds of input whose column of lengths may be one of tokens."""


def paths_of_inputs(input: Source | Iterable[Source]) -> list[str]:
    """Returns the inputs as they were named; a ValueError if that is no way to name one."""
    named = [input] if isinstance(input, str | os.PathLike) else list(input) if isinstance(input, Iterable) else [None]
    paths = [as_path(one) for one in named if isinstance(one, str | os.PathLike) and str(one)]
    if len(paths) < len(named):
        raise ValueError(
            parameter("input")
            + f" must be a file, a folder, a pattern, a URL of one, or a list of these, got {input!r:.60}"
        )
    return paths


def name_of_inputs(sources: Sequence[str]) -> str:
    """Returns what the manifest calls the inputs: last components, and of a pattern its folder too."""
    names = []
    for source in sources[:_MOST_NAMES]:
        path = Path(without_secrets(source).partition("://")[2] if is_url(source) else os.path.abspath(source))
        names.append("/".join(path.parts[-2:]).removeprefix("//") if glob.has_magic(path.name) else path.name)
    if len(sources) > _MOST_NAMES:
        names.append(f"{len(sources) - _MOST_NAMES:,} more")
    return os.fsencode(", ".join(names)).decode(errors="replace")


def joined_names(before: str, more: str) -> str:
    """Returns what the manifest calls the inputs of a dataset that grew."""
    names = f"{before}, {more}".split(", ")
    return ", ".join([*names[:_MOST_NAMES], *["…"] * (len(names) > _MOST_NAMES)])


def write_inputs(
    folder: Path | None,
    opened: Opened,
    skipped: Sequence[tuple[str, NDArray[np.int64]]],
    before: PreparedDataset | None = None,
    *,
    output: Path | None = None,
    tokens_folder: Path | None = None,
) -> Inputs:
    """Returns what the manifest says of the input, and writes whole lists where those are longer.

    Args:
        folder: where to write; None writes nothing.
        opened: what was read.
        skipped: files and (row, Fault) of their rows that were skipped, in order: int64 [k, 2] each.
        before: the version that was appended to, whose input comes first.
        output: the folder to be.
        tokens_folder: of the input, which becomes a subfolder of it.
    """
    names = _names([file.path for file in opened.files])
    files = [
        *(inputs_of(before) if before else ()),
        *(
            InputRecord(
                name=names[file.path],
                size_bytes=file.stamp.size_bytes,
                modified_ns=file.stamp.modified_ns,
                etag=file.stamp.version or None,
                rows=file.num_rows,
            )
            for file in opened.files
        ),
    ]

    def skipped_rows() -> Iterator[SkippedRow]:
        if before:
            yield from _skipped_of(before)
        for path, rows in skipped:
            for row, fault in rows.tolist():
                yield SkippedRow(file=names.get(path, path), row=row, reason=Fault(fault).reason)

    left_out = Counter(before.manifest.inputs.left_out if before and before.manifest.inputs else None)
    if opened.kind in ("Megatron", "flat"):
        for file in opened.files:
            left_out += Counter({} if is_url(file.path) else left_out_of(file.path))
    by_reason = Counter(Fault(fault).reason for _, rows in skipped for fault in rows[:, 1].tolist())
    num_skipped = by_reason.total()
    num_rows = opened.num_rows
    if before is not None and before.manifest.inputs is not None:
        num_skipped += before.manifest.inputs.skipped.rows
        by_reason += Counter(before.manifest.inputs.skipped.by_reason)
        num_rows += before.manifest.inputs.rows
    if folder is not None and len(files) > MOST_LISTED:
        write_records(folder / INPUTS, files)
    if folder is not None and num_skipped > MOST_LISTED:
        write_records(folder / SKIPPED, skipped_rows())
    return Inputs(
        kind=opened.kind,
        length_column=opened.columns.length,
        rows=num_rows,
        num_files=len(files),
        files=tuple(files[:MOST_LISTED]),
        skipped=SkippedRows(
            rows=num_skipped,
            first=tuple(islice(skipped_rows(), MOST_LISTED)),
            by_reason=dict(sorted(by_reason.items())) if num_skipped == by_reason.total() > 0 else None,
        ),
        left_out=dict(sorted(left_out.items())) or None,
        tokens=None if output is None else _tokens_of(opened, output, tokens_folder, before),
    )


def _tokens_of(
    opened: Opened, output: Path, tokens_folder: Path | None, before: PreparedDataset | None
) -> TokensRecord | None:
    """Returns where the tokens of an input are, with those of a version before; None if not in one place on a disk."""
    if opened.kind in _TABLES:
        return _tokens_of_table(opened, output, before)
    if before is not None:
        return None
    paths = {each.path for each in opened.ranges}
    if opened.kind not in ("Megatron", "flat") or len(paths) != 1 or is_url(path := paths.pop()):
        return None
    tokens: MegatronTokens | FlatTokens
    if opened.kind == "Megatron":
        data, named = megatron_paths(path)
    else:
        data = named = Path(path.removesuffix(".boundaries"))
    relative = _relative(named, output)
    if tokens_folder is not None:
        relative = f"{TOKENS}/{named.name}"
    if not data.is_file() or not relative.isprintable():  # a name that is no text
        return None
    tokens = MegatronTokens(named) if opened.kind == "Megatron" else FlatTokens(named)
    return TokensRecord(
        path=relative,
        fingerprint=tokens_fingerprint(tokens.read, len(tokens)),
        dtype=tokens.index.dtype.name,
        has_loss_mask=as_token_source(named).loss_mask_beside() is not None,
    )


def _tokens_of_table(opened: Opened, output: Path, before: PreparedDataset | None) -> TokensRecord | None:
    """Returns where a table's tokens are, if its lengths were counted from them."""
    inputs = None if before is None else before.manifest.inputs
    if before is not None and (inputs is None or inputs.tokens is None):
        return None
    paths, column = [file.path for file in opened.files], opened.columns.length
    folders = {os.path.dirname(path) for path in paths}
    if any(map(is_url, paths)) or len(folders) != 1:
        return None
    is_one_file = len(paths) == 1 and opened.kind != "MDS" and before is None
    named = paths[0] if is_one_file else folders.pop() or "."
    relative = _relative(named, output)
    try:
        source = as_token_source(named, column=column)
        num_rows = opened.num_rows + (0 if inputs is None else inputs.rows)
        if source.num_sequences != num_rows or not relative.isprintable():
            return None
        if inputs is not None and inputs.tokens is not None:  # the rows before come first
            check_tokens(source, inputs.tokens.fingerprint, inputs.rows)
        dtype = None if source.token_dtype is None else source.token_dtype.name
        return TokensRecord(path=relative, fingerprint=fingerprint_of(source, num_rows), column=column, dtype=dtype)
    except (ValueError, OSError):  # a column of lengths, rows without tokens, or files of another kind beside it
        return None


def _relative(path: str | Path, output: Path) -> str:
    return os.path.relpath(os.path.abspath(path), os.path.abspath(output)).replace(os.sep, "/")


def inputs_of(before: PreparedDataset) -> Iterator[InputRecord]:
    """Yields every file that a version was prepared from."""
    inputs = before.manifest.inputs
    assert inputs is not None  # to others nothing is appended
    yield from inputs.files if inputs.num_files <= MOST_LISTED else read_records(before.path / INPUTS, InputRecord)


def _skipped_of(before: PreparedDataset) -> Iterator[SkippedRow]:
    assert before.manifest.inputs is not None
    skipped = before.manifest.inputs.skipped
    yield from skipped.first if skipped.rows <= MOST_LISTED else read_records(before.path / SKIPPED, SkippedRow)


def _names(paths: Sequence[str]) -> dict[str, str]:
    """Returns path → its part below the folder that all share, as text."""
    whole = [absolute(path) for path in paths]
    folders = zip(*(os.path.dirname(path).split("/") for path in whole), strict=False)
    shared = "/".join(names[0] for names in takewhile(lambda names: len(set(names)) == 1, folders))
    relative = [path.removeprefix(shared).lstrip("/")[-_MOST_CHARACTERS:] for path in whole]
    return {path: os.fsencode(name).decode(errors="replace") for path, name in zip(paths, relative, strict=True)}


def gather_keys(
    folder: Path, opened: Opened, progress: Progress, before: PreparedDataset | None = None
) -> KeyRecord | None:
    """Writes the table of keys; None if the input has none.

    Args:
        folder: to write it into.
        opened: the input.
        progress: shows sequences.
        before: the version that the rows are added to, whose keys come first.

    Raises:
        ValueError: a row has no key, or two have the same; the message names them.
    """
    if opened.keys is None:
        return None
    column, num_rows = opened.keys.name, opened.num_rows
    num_before = len(before.keys) if before and before.keys else 0

    def rows() -> Iterator[KeyRows]:
        if before and before.keys:
            yield from before.keys.rows()
        assert opened.keys is not None
        count = 0
        with progress.task("keeping keys", num_rows, "sequences") as advance:
            for some in opened.keys.rows():
                yield some
                count += len(some.sizes)
                advance(len(some.sizes))
        if count != num_rows:
            raise changed(opened.ranges[0].path)
        opened.check_files()

    try:
        return write_keys(folder, rows(), column=column, num_keys=num_before + num_rows)
    except DuplicateKeyError as error:
        first, second = (_row_named(opened, each, before) for each in error.ids)
        raise ValueError(
            f"key {error.key!r:.100} comes twice ({first}; {second}); a key names one sequence: repair "
            f"column {column!r}, or leave out " + parameter("id_column") + " to go without keys"
        ) from None


def _row_named(opened: Opened, index: int, before: PreparedDataset | None) -> str:
    """Names the row of a sequence by its number over all files."""
    for each in opened.ranges:
        if each.first_index <= index < each.first_index + each.num_rows:
            return f"row {each.first_row + index - each.first_index} of {each.where}"
    return f"row {index} of what {before.name} was prepared from" if before else f"row {index}"
