"""Readers: from whatever serves as tokens or lengths to spans of rows. One protocol, a file for each kind of input.

Owns the list of readers and which of them an input is for; leaves reading to them.
"""

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packhorse.formats.files import exists, is_folder, named_files
from packhorse.formats.object_store import is_url, without_secrets
from packhorse.prepare.input._arrow_rows import map_array
from packhorse.prepare.input._base import InputFile, Opened, Reader, Span, changed, cut
from packhorse.prepare.input._keys import KeyColumn
from packhorse.prepare.input._rows import Batch, Fault, InputColumns, OnBadRow, RawRows
from packhorse.prepare.input.arrow import ArrowReader
from packhorse.prepare.input.elsewhere import HistogramReader, TextReader
from packhorse.prepare.input.mds import MdsReader
from packhorse.prepare.input.memory import open_held
from packhorse.prepare.input.npy import NpyReader, load_npy
from packhorse.prepare.input.parquet import ParquetReader
from packhorse.prepare.input.seqpack import SeqpackReader
from packhorse.prepare.input.stored import FlatReader, MegatronReader

__all__ = [
    "READERS",
    "Batch",
    "Fault",
    "Found",
    "InputColumns",
    "InputFile",
    "KeyColumn",
    "OnBadRow",
    "Opened",
    "RawRows",
    "Reader",
    "Span",
    "changed",
    "cut",
    "find_inputs",
    "load_npy",
    "map_array",
    "open_held",
]

READERS: tuple[Reader, ...] = (
    MdsReader(),
    ParquetReader(),
    ArrowReader(),
    MegatronReader(),
    FlatReader(),
    NpyReader(),
    SeqpackReader(),
    HistogramReader(),
    TextReader(),
)
"""In the order in which an input is shown to them."""

_TABLES = (".parquet", ".arrow")
"""What a folder is searched for first where no index says what it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The files that inputs name, and who reads them."""

    reader: Reader
    paths: list[str]
    """In the order that numbers their rows: those of the first input, sorted, then those of the next."""

    def files_read(self) -> list[Path]:
        """Returns every file that is looked at on this machine's disks."""
        return [Path(path) for path in [*self.paths, *self.reader.files_beside(self.paths)] if not is_url(path)]


def find_inputs(sources: Sequence[str]) -> Found:
    """Finds the files that inputs name, and the reader for them.

    Args:
        sources: see `packhorse prepare --help`.

    Raises:
        FileNotFoundError: nothing is at one of them.
        ValueError: no reader knows one, two are of different kinds or name the same file, or several are given of a
            kind whose ids are the entries of one.
    """
    if not sources:
        raise ValueError("--input names nothing")
    readers = [_reader_for(source) for source in sources]
    paths: list[str] = []
    named_by: dict[str, str] = {}
    for source, reader in zip(sources, readers, strict=True):
        found = reader.files(source)
        real_paths = [path if is_url(path) else os.path.realpath(path) for path in found]
        for path, real_path in zip(found, real_paths, strict=True):
            if real_path in named_by:
                raise ValueError(
                    f"{without_secrets(path)} is named twice, by --input {without_secrets(named_by[real_path])} and "
                    f"--input {without_secrets(source)}; name each file once"
                )
        named_by.update(dict.fromkeys(real_paths, source))
        paths += found
    for source, reader in zip(sources, readers, strict=True):
        if reader.is_alone and len(paths) > 1:
            raise ValueError(
                f"{without_secrets(source)} is {reader.kind}, whose entries are the ids, so it can only be "
                f"prepared alone, and --input names {len(paths)} files; join them first, or prepare each into a "
                "dataset of its own"
            )
        if reader is not readers[0]:
            raise ValueError(
                f"{without_secrets(sources[0])} is {readers[0].kind} and {without_secrets(source)} is {reader.kind}; "
                "prepare each kind into a dataset of its own"
            )
    return Found(reader=readers[0], paths=paths)


def _reader_for(source: str) -> Reader:
    path = source
    if is_folder(source):
        path = _example_in(source)
    elif glob.has_magic(source) and not exists(source):
        path = named_files(source, "")[0]
    elif not exists(source) and not exists(source + ".idx"):
        raise FileNotFoundError(f"{without_secrets(source)} does not exist")
    for reader in READERS:
        if reader.recognises(path):
            return reader
    raise ValueError(
        f"{without_secrets(path)} is of no kind that is known by its name or first bytes; `packhorse prepare --help` "
        "lists what is read"
    )


def _example_in(folder: str) -> str:
    """Returns the folder, where an index in it says what it is, or else one of its files."""
    if any(reader.recognises(folder) for reader in READERS):
        return folder
    found: dict[str, str] = {}
    shown = without_secrets(folder)
    for path in _files_below(folder):
        found.setdefault(os.path.splitext(path)[1], path)
    tables = [suffix for suffix in _TABLES if suffix in found]
    if len(tables) > 1:
        raise ValueError(
            f"the folder {shown} holds both *{tables[0]} and *{tables[1]}; give a quoted pattern, such as "
            f"{os.path.join(shown, '*' + tables[0])}"
        )
    for suffix in (*tables, ".npy"):
        if suffix in found:
            return found[suffix]
    raise FileNotFoundError(
        f"the folder {shown} holds no {', '.join('*' + suffix for suffix in _TABLES)} or *.npy file at any depth, and "
        "neither a state.json nor an index.json; text is for `packhorse tokenize`"
    )


def _files_below(folder: str) -> Iterator[str]:
    """Yields every file of a folder, at any depth, in no order."""
    if is_url(folder):
        yield from named_files(folder, "")
        return
    for parent, _, names in os.walk(folder):
        yield from (os.path.join(parent, name) for name in names)
