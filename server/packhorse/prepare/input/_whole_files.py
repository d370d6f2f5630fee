"""Readers of files that are read whole, and what they share: keys beside files, and columns that they have not."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from packhorse.formats.files import is_folder, named_files, open_binary
from packhorse.formats.object_store import without_secrets
from packhorse.parameters import parameter
from packhorse.prepare.input._rows import InputColumns
from packhorse.prepare.input._tables import KeyChunk, KeyColumn


class WholeFiles:
    """The plain answers of a reader whose input is the files that a path names."""

    is_alone = False
    suffixes: tuple[str, ...] = ()
    """Suffixes of its files; a folder is searched for the first."""
    magic: bytes | None = None
    """First bytes of its files, whatever their names."""

    def recognises(self, path: str) -> bool:
        """See `Reader`."""
        if without_secrets(path).endswith(self.suffixes):
            return not is_folder(path)
        return bool(self.magic and first_bytes(path, len(self.magic)) == self.magic)

    def files(self, source: str) -> list[str]:
        """See `Reader`."""
        return named_files(source, self.suffixes[0])

    def files_beside(self, paths: Sequence[str]) -> list[str]:
        """See `Reader`."""
        return []


def keys_of_files(
    columns: InputColumns, paths: Sequence[str], column_of: Callable[[str, str], Iterator[Any]]
) -> KeyColumn | None:
    """Returns what reads the keys of files; None if no column has any.

    Args:
        columns: chosen.
        paths: of the files, in order.
        column_of: yields a column of one as Arrow arrays.
    """
    name = columns.key
    if name is None:
        return None

    def chunks() -> Iterator[KeyChunk]:
        for path in paths:
            row = 0
            for values in column_of(path, name):
                yield KeyChunk(without_secrets(path), row, values)
                row += len(values)

    return KeyColumn.of_chunks(name, chunks)


def first_bytes(path: str, size: int) -> bytes:
    """Returns what a file or an object begins with; nothing of a folder or of what cannot be read."""
    try:
        with open_binary(path) as file:
            return file.read(size)
    except OSError:
        return b""


def refuse_columns(path: str, kind: str, columns: InputColumns) -> None:
    """Refuses columns that were named for what has none; a ValueError."""
    where = without_secrets(path)
    if columns.group is not None:
        raise ValueError(
            f"{where} is {kind}, which has no columns: "
            + parameter("group_size", "N")
            + " makes groups of every N entries, and "
            + parameter("groups", "FILE.npy")
            + " names each entry's"
        )
    if columns.resources:
        raise ValueError(f"{where} is {kind}, which has no columns, so none of resources: prepare from a table of both")
    if columns.length is not None or columns.id is not None:
        raise ValueError(
            f"{where} is {kind}, which has no columns: leave out "
            + parameter("length_column")
            + "/"
            + parameter("id_column")
        )
