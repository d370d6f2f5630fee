"""The pass over the keys of an input, which writes their table.

Owns naming the rows of a key that comes twice. Leaves reading keys to `packhorse.prepare.input`, and the table to
`packhorse.dataset`.
"""

from collections.abc import Iterator
from pathlib import Path

from packhorse.dataset import (
    DuplicateKeyError,
    KeyRecord,
    KeyRows,
    PreparedDataset,
    write_keys,
)
from packhorse.jobs import Progress
from packhorse.parameters import parameter
from packhorse.prepare.input import Opened, changed


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
