"""Finding the reader for an input, and the files that the input names.

Owns the list of readers. Leaves reading to a module for each kind of input, such as `parquet`, kinds that are refused
to `_refused_kinds`, and objects in memory to `held`.
"""

import glob
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packhorse.formats.files import as_path, exists, is_folder, named_files
from packhorse.formats.object_store import is_url, without_secrets
from packhorse.parameters import parameter
from packhorse.prepare.input._base import Opened, Reader
from packhorse.prepare.input._columns import InputColumns
from packhorse.prepare.input._mds import MdsReader
from packhorse.prepare.input._refused_kinds import HistogramRefusal, TextRefusal
from packhorse.prepare.input._seqpack import SeqpackReader
from packhorse.prepare.input._token_files import FlatReader, MegatronReader
from packhorse.prepare.input.arrow import ArrowReader
from packhorse.prepare.input.npy import NpyReader
from packhorse.prepare.input.parquet import ParquetReader
from packhorse.storage import check_plain

Source = str | os.PathLike[str]
"""An input: a file, a folder or a pattern, or a URL of any of these in an object store."""

READERS: tuple[Reader, ...] = (
    MdsReader(),
    ParquetReader(),
    ArrowReader(),
    MegatronReader(),
    FlatReader(),
    NpyReader(),
    SeqpackReader(),
    HistogramRefusal(),
    TextRefusal(),
)
"""All readers, in the order in which they are asked whether they recognise an input."""

_MOST_INPUTS_NAMED = 3
"""Most inputs that a message names."""
_TABLES = (".parquet", ".arrow")
"""Suffixes of the files that are looked for in a folder without an index, before array files (.npy)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The files that inputs name, and their reader."""

    reader: Reader
    """The reader of all the files."""
    paths: list[str]
    """Paths in the order in which rows are numbered: the sorted files of the first input, then those of the next."""

    def open(self, columns: InputColumns) -> Opened:
        """Returns the files' rows as ranges; see `Reader.open`."""
        return self.reader.open(self.paths, columns)

    def files_read(self) -> list[Path]:
        """Returns every file on this machine's disks that is read, including files beside the named ones."""
        return [Path(path) for path in [*self.paths, *self.reader.files_beside(self.paths)] if not is_url(path)]


def paths_of_inputs(input: Source | Iterable[Source]) -> list[str]:
    """Returns the inputs as paths or URLs; raises a ValueError if something is neither."""
    sources = input if isinstance(input, Iterable) and not isinstance(input, str | os.PathLike) else [input]
    paths = []
    for source in sources:
        if not isinstance(source, str | os.PathLike) or not str(source):
            raise ValueError(
                parameter("input")
                + f" must be a file, a folder, a pattern, a URL of one, or a list of these, got {input!r:.60}"
            )
        paths.append(as_path(source))
    return paths


def find_inputs(sources: Sequence[str]) -> Found:
    """Finds the files that inputs name, and the reader for them.

    Args:
        sources: see `packhorse prepare --help`.

    Raises:
        FileNotFoundError: a source does not exist, or is a folder without files of a known kind.
        ValueError: no reader recognises a source; two sources are of different kinds or name the same file; or several
            are given of a kind whose ids are the entries of one file.
    """
    if not sources:
        raise ValueError(parameter("input") + " names nothing")
    readers = [_reader_for(source) for source in sources]
    paths = _distinct_files(sources, readers)
    for source, reader in zip(sources, readers, strict=True):
        if reader.is_alone and len(paths) > 1:  # before kinds are compared: no other input could go with it
            raise ValueError(
                f"{without_secrets(source)} is {reader.kind}, whose entries are the ids, so it can only be "
                f"prepared alone, and the input names {len(paths)} files; {_way_out(reader, sources)}"
            )
        if reader is not readers[0]:
            raise ValueError(
                f"{without_secrets(sources[0])} is {readers[0].kind} and {without_secrets(source)} is {reader.kind}; "
                "prepare each kind into a dataset of its own"
            )
    return Found(reader=readers[0], paths=paths)


def _distinct_files(sources: Sequence[str], readers: Sequence[Reader]) -> list[str]:
    """Returns the files of all sources, in order; raises a ValueError if two sources name the same file."""
    paths: list[str] = []
    named_by: dict[str, str] = {}  # real path → the source that names the file
    for source, reader in zip(sources, readers, strict=True):
        files = reader.files(source)
        real_paths = [path if is_url(path) else os.path.realpath(path) for path in files]
        for path, real_path in zip(files, real_paths, strict=True):
            if real_path in named_by:
                raise ValueError(
                    f"{without_secrets(path)} is named twice, by the inputs "
                    f"{without_secrets(named_by[real_path])} and {without_secrets(source)}; name each file once"
                )
        named_by.update(dict.fromkeys(real_paths, source))  # afterwards: one source may name a file twice, by links
        paths += files
    return paths


def _way_out(reader: Reader, sources: Sequence[str]) -> str:
    """Returns advice, for a message, on several inputs of a kind whose ids are entries."""
    if not isinstance(reader, MegatronReader | FlatReader):
        return "prepare each into a dataset of its own"
    inputs = " ".join(f"--input {shlex.quote(without_secrets(source))}" for source in sources[:_MOST_INPUTS_NAMED])
    more = " …" if len(sources) > _MOST_INPUTS_NAMED else ""
    return (
        f"join them first, with `packhorse tokenize {inputs}{more} --output JOINED`, or prepare each into a dataset of "
        "its own and mix these with `packhorse mixture`"
    )


def _reader_for(source: str) -> Reader:
    """Returns the first reader that recognises a source, or an example of its files if it is a folder or a pattern."""
    path = source
    if is_folder(source):
        path = _example_in(source)
    elif glob.has_magic(source) and not exists(source):
        path = named_files(source, suffix="")[0]
    elif not exists(source) and not exists(source + ".idx"):  # Megatron's prefix may stand for its index
        raise FileNotFoundError(f"{without_secrets(source)} does not exist")
    if not is_url(path) and os.path.exists(path) and not os.path.isdir(path):
        check_plain(path)  # refuses a pipe, for whose writer a library would wait
    for reader in READERS:
        if reader.recognises(path):
            return reader
    if path.endswith(".ds") and exists(f"{path}.index"):
        shown = without_secrets(path)
        raise ValueError(
            f"{shown} is of datatrove, whose index has the form of .boundaries: `ln -s {os.path.basename(shown)}.index "
            f"{shown}.boundaries`, then prepare {shown}"
        )
    raise ValueError(
        f"{without_secrets(path)} is not recognised by its name or first bytes; `packhorse prepare --help` "
        "lists what is read"
    )


def _example_in(folder: str) -> str:
    """Returns the folder itself if a reader recognises it, by an index in it; else one of its files."""
    if any(reader.recognises(folder) for reader in READERS):
        return folder
    shown = without_secrets(folder)
    first_files: dict[str, str] = {}  # suffix → the first file with it
    for path in _files_below(folder):
        first_files.setdefault(os.path.splitext(path)[1], path)
    tables = [suffix for suffix in _TABLES if suffix in first_files]
    if len(tables) > 1:
        raise ValueError(
            f"the folder {shown} holds both *{tables[0]} and *{tables[1]}; give a quoted pattern, such as "
            f"{os.path.join(shown, '*' + tables[0])}"
        )
    for suffix in (*tables, ".npy"):
        if suffix in first_files:
            return first_files[suffix]
    raise FileNotFoundError(
        f"the folder {shown} holds no {', '.join('*' + suffix for suffix in _TABLES)} or *.npy file at any depth, and "
        "neither a state.json nor an index.json; text is for `packhorse tokenize`"
    )


def _files_below(folder: str) -> Iterator[str]:
    if is_url(folder):
        yield from named_files(folder, suffix="")
        return
    for parent, _, names in os.walk(folder):
        yield from (os.path.join(parent, name) for name in names)
