"""The pass over the keys of an input, which writes the dataset's table of keys.

Owns the pass, and the error that names the rows of a key that occurs twice. Leaves reading keys to
`packhorse.prepare.input`, and the table to `packhorse.dataset.keys`.
"""

from collections.abc import Iterator
from pathlib import Path

from packhorse.dataset import DuplicateKeyError, KeyRecord, KeyRows, PreparedDataset, write_keys
from packhorse.jobs import Progress
from packhorse.parameters import parameter
from packhorse.prepare.input import Opened, changed


def gather_keys(
    folder: Path, opened: Opened, progress: Progress, before: PreparedDataset | None = None
) -> KeyRecord | None:
    """Writes the table of keys, and returns its record; returns None if the input has no keys.

    Args:
        folder: the folder to write the table into.
        opened: the input.
        progress: shows the sequences whose keys were read.
        before: the version to which the rows are added, whose keys come first; None for a new dataset.

    Raises:
        ValueError: a row has no key, or two rows have the same; the message names them.
    """
    if opened.keys is None:
        return None
    column, num_rows = opened.keys.name, opened.num_rows
    num_before = len(before.keys) if before and before.keys else 0

    def rows() -> Iterator[KeyRows]:
        """Yields the earlier keys, then the input's, with progress."""
        if before and before.keys:
            yield from before.keys.rows()
        assert opened.keys is not None
        num_read = 0
        with progress.task("keeping keys", num_rows, "sequences") as advance:
            for key_rows in opened.keys.rows():
                yield key_rows
                num_read += len(key_rows.sizes)
                advance(len(key_rows.sizes))
        if num_read != num_rows:
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
    """Returns the name, for messages, of the row with a number over all files, such as "row 7 of a.parquet"."""
    for each in opened.ranges:
        if each.first_index <= index < each.first_index + each.num_rows:
            return f"row {each.first_row + index - each.first_index} of {each.where}"
    return f"row {index} of what {before.name} was prepared from" if before else f"row {index}"
