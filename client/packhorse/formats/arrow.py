"""Arrow IPC files, and the folders of them that Hugging Face `datasets` saves, memory-mapped.

Owns which files are meant, in the order that numbers their rows, and opening one; leaves what columns mean to its
readers. pyarrow is imported here when a file is opened, and asked for by name and extra before that.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from packhorse.formats.files import find_files

SUFFIXES = (".arrow", ".ipc", ".feather")
SAVED_STATE = "state.json"
"""What a folder of `Dataset.save_to_disk` holds beside its Arrow files."""
SAVED_SPLITS = "dataset_dict.json"
"""What a folder of `DatasetDict.save_to_disk` holds beside a folder for each split."""

_FILE_MAGIC = b"ARROW1"


def arrow_files(source: str | os.PathLike[str]) -> list[Path]:
    """Finds the Arrow files that one path names, in the order that numbers their rows.

    Args:
        source: an Arrow file, a folder of `*.arrow` at any depth, a glob pattern, or a folder that
            `Dataset.save_to_disk` wrote.

    Returns:
        At least one path.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: a saved dataset has no files, or rows selected in a way that only an old `datasets` knows.
    """
    folder = Path(source)
    if not (folder / SAVED_STATE).is_file():
        return find_files(source, ".arrow")
    try:
        state = json.loads((folder / SAVED_STATE).read_text(encoding="utf-8"))
        is_selected = bool(state.get("_indices_data_files") or state.get("_indices_files"))
        names = [str(entry["filename"]) for entry in state.get("_data_files") or []]
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / SAVED_STATE} is not what `datasets` writes: {error!r}") from None
    if is_selected:
        raise ValueError(f"{folder} was saved with rows selected by an old `datasets`; save it with a newer one")
    if not names:
        raise ValueError(f"{folder / SAVED_STATE} names no Arrow file, so the dataset is empty or not whole")
    return [folder / name for name in names]


def saved_splits(folder: Path) -> list[str]:
    """Returns the splits of a folder that `DatasetDict.save_to_disk` wrote, sorted; none of any other folder."""
    if not (folder / SAVED_SPLITS).is_file():
        return []
    return sorted(state.parent.name for state in folder.glob(f"*/{SAVED_STATE}"))


def open_arrow(path: str | os.PathLike[str], *, columns: Sequence[int] | None = None) -> tuple[Any, Any]:
    """Maps an Arrow file of the file or the stream format.

    Args:
        path: the file.
        columns: the only ones that are decoded, by number, where the file is compressed; None for all.

    Returns:
        All of its bytes, as an Arrow buffer, and a reader of its record batches.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no Arrow IPC file.
    """
    import pyarrow as pa
    from pyarrow import ipc

    try:
        # The map outlives the file: thousands of shards must not keep as many descriptors open.
        with pa.memory_map(os.fspath(path)) as file:
            whole = file.read_buffer()
        is_stream = whole[: len(_FILE_MAGIC)].to_pybytes() != _FILE_MAGIC
        open_reader = ipc.open_stream if is_stream else ipc.open_file
        options = ipc.IpcReadOptions(use_threads=False, included_fields=None if columns is None else list(columns))
        reader = open_reader(pa.BufferReader(whole), options=options)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read as an Arrow IPC file: {error}") from None
    return whole, reader


def record_batches(reader: Any, path: str | os.PathLike[str], first: int = 0, end: int | None = None) -> Iterator[Any]:
    """Yields the record batches [first, end) of a reader; end None is the last.

    Raises:
        ValueError: the file is damaged.
    """
    import pyarrow as pa

    try:
        if hasattr(reader, "get_batch"):  # the file format's; the stream's is an iterator
            for number in range(first, reader.num_record_batches if end is None else end):
                yield reader.get_batch(number)
            return
        for number, batch in enumerate(reader):
            if end is not None and number >= end:
                return
            if number >= first:
                yield batch
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read as an Arrow IPC file: {error}") from None
